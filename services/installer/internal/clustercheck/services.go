package clustercheck

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/installer/internal/kube"
)

// service is what is compared of a Service.
type service struct {
	headless bool
	vips     []string
	ports    map[string]port // by name
}

type port struct {
	number   int32
	protocol string
}

// readServices reads all Services, and the gateways among them.
func (f *Facts) readServices(ctx context.Context) error {
	f.services = map[string]service{}
	for o := (metav1.ListOptions{Limit: kube.Page}); ; {
		list, err := f.API.CoreV1().Services("").List(ctx, o)
		if err != nil {
			return err
		}
		for i := range list.Items {
			s := &list.Items[i]
			f.services[s.Namespace+"/"+s.Name] = serviceOf(s)
			if network := s.Labels[labelNetwork]; network != "" && network == f.network {
				f.gateways = append(f.gateways, gatewayOf(s))
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

func serviceOf(s *corev1.Service) service {
	out := service{headless: s.Spec.ClusterIP == corev1.ClusterIPNone, ports: map[string]port{}}
	for _, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			out.vips = append(out.vips, ip)
		}
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		out.ports[p.Name] = port{p.Port, protocolOf(p)}
	}
	return out
}

// protocolOf is what a port says of its protocol, by Istio's rule: appProtocol, else the name before the first dash.
func protocolOf(p *corev1.ServicePort) string {
	if p.Protocol == corev1.ProtocolUDP {
		return "udp"
	}
	if p.AppProtocol != nil && *p.AppProtocol != "" {
		return strings.ToLower(*p.AppProtocol)
	}
	head, _, _ := strings.Cut(strings.ToLower(p.Name), "-")
	switch head {
	case "http", "http2", "https", "grpc", "tcp", "tls", "mongo", "mysql", "redis":
		return head
	}
	return "not said"
}

func gatewayOf(s *corev1.Service) gateway {
	out := gateway{name: s.Namespace + "/" + s.Name, addresses: slices.Clone(s.Spec.ExternalIPs),
		port: cmp.Or(s.Labels[labelGatewayPort], gatewayPort)}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out.addresses = append(out.addresses, in.IP)
		}
		if in.Hostname != "" {
			out.hosts = append(out.hosts, in.Hostname)
		}
	}
	out.open = slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return fmt.Sprint(p.Port) == out.port })
	return out
}

// isLocal reports whether clients of a service use its own cluster's endpoints alone, so that Services of that name
// need not agree: by default, and by MeshConfig.serviceSettings, of which the most specific host counts.
func (f *Facts) isLocal(name string) bool {
	namespace, service, _ := strings.Cut(name, "/")
	host := service + "." + namespace + ".svc." + defaultTrust
	if local, ok := f.local[host]; ok {
		return local
	}
	longest, local := "", namespace == metav1.NamespaceSystem || namespace == f.Namespace || name == "default/kubernetes"
	for pattern, says := range f.local {
		suffix, wildcard := strings.CutPrefix(pattern, "*")
		if wildcard && strings.HasSuffix(host, suffix) && len(pattern) > len(longest) {
			longest, local = pattern, says
		}
	}
	return local
}

// maxDiffering bounds the services that rows name.
const maxDiffering = 20

// compareServices compares Services of one name.
func (r *report) compareServices(a, b *Facts) {
	both := []*Facts{a, b}
	same, differing := 0, 0
	for _, name := range slices.Sorted(maps.Keys(a.services)) {
		x := a.services[name]
		y, ok := b.services[name]
		if !ok || a.isLocal(name) || b.isLocal(name) {
			continue
		}
		same++
		verdict, what := x.differs(y, a.Context, b.Context)
		if what == "" {
			continue
		}
		if differing++; differing > maxDiffering {
			continue
		}
		r.add(checkServices, verdict, "make both alike, or say with serviceSettings.settings.clusterLocal that it stays in its cluster", both,
			"Service %s: %s", name, what)
	}
	switch {
	case differing > maxDiffering:
		r.add(checkServices, Failed, "make them alike, too", both, "%d more Services of one name differ", differing-maxDiffering)
	case differing == 0:
		r.add(checkServices, OK, "", both, "%d Services of one name have the same ports and protocols", same)
	}
}

// differs says how two Services of one name differ in what the mesh joins them by: names of ports.
func (s service) differs(o service, here, there string) (v Verdict, what string) {
	if s.headless != o.headless {
		with, without := here, there
		if o.headless {
			with, without = there, here
		}
		return Failed, fmt.Sprintf("it is headless in %s and not in %s", with, without)
	}
	var failed, warned []string
	names := slices.Sorted(maps.Keys(s.ports))
	for name := range o.ports {
		if _, ok := s.ports[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		p, inHere := s.ports[name]
		q, inThere := o.ports[name]
		switch {
		case !inThere:
			failed = append(failed, fmt.Sprintf("port %q (%d) is not in %s, so that cluster's endpoints do not serve it", name, p.number, there))
		case !inHere:
			failed = append(failed, fmt.Sprintf("port %q (%d) is not in %s, so that cluster's endpoints do not serve it", name, q.number, here))
		case p.protocol != q.protocol:
			failed = append(failed, fmt.Sprintf("the protocol of port %q is %s in %s and %s in %s", name, p.protocol, here, q.protocol, there))
		case p.number != q.number:
			warned = append(warned, fmt.Sprintf("port %q is %d in %s and %d in %s", name, p.number, here, q.number, there))
		}
	}
	switch {
	case len(failed) > 0:
		return Failed, strings.Join(append(failed, warned...), "; ")
	case len(warned) > 0:
		return Warning, strings.Join(warned, "; ")
	}
	return OK, ""
}
