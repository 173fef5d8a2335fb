package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Namespace is that of the generated Gateways, and of the Service that MeshConfig.ingressService names.
const Namespace = kinds.MeshNamespace

// AnyHost is the host of requests for every host.
const AnyHost = "*"

// Selector is the selector of the gateways that serve Ingresses.
func Selector(settings *mesh.MeshConfig) map[string]string {
	const label, standard = "istio", "istio-ingressgateway"
	switch {
	case settings.GetIngressSelector() != "":
		return map[string]string{label: settings.GetIngressSelector()}
	case settings.GetIngressService() != "" && settings.GetIngressService() != standard:
		return map[string]string{label: settings.GetIngressService()}
	default:
		return map[string]string{label: "ingressgateway"}
	}
}

// generated returns an object that is made from an Ingress.
func generated(from *object.Object, kind, namespace, name string, body any) *object.Object {
	key := object.Key{Group: kinds.GroupNetworking, Kind: kind, Namespace: namespace, Name: name}
	return &object.Object{
		Key: key, APIVersion: kinds.Canonical(key.Group, key.Kind), Created: from.Created, Generation: from.Generation,
		Source: from.Source, Location: from.Location, Body: body, Origin: from,
	}
}

// GatewayName is the name of an Ingress's Gateway.
func GatewayName(o object.Key) string {
	return o.Name + "-" + object.GeneratedIngressInfix + "-" + o.Namespace
}

// Gateway makes the Gateway of an Ingress: port 80 for every host, and port 443 for each TLS entry with a Secret. The
// gateway's workload reads the Secret in its own namespace.
func Gateway(settings *mesh.MeshConfig, o *object.Object) *object.Object {
	out := &networking.Gateway{Selector: Selector(settings)}
	for i, t := range o.Body.(*networkingv1.Ingress).Spec.TLS {
		if t.SecretName == "" {
			continue
		}
		hosts := t.Hosts
		if len(hosts) == 0 {
			hosts = []string{AnyHost}
		}
		out.Servers = append(out.Servers, &networking.Server{
			Port:  &networking.Port{Number: 443, Protocol: "HTTPS", Name: fmt.Sprintf("https-443-ingress-%s-%s-%d", o.Key.Name, o.Key.Namespace, i)},
			Hosts: slices.Clone(hosts),
			Tls:   &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: t.SecretName},
		})
	}
	out.Servers = append(out.Servers, &networking.Server{
		Port:  &networking.Port{Number: 80, Protocol: "HTTP", Name: fmt.Sprintf("http-80-ingress-%s-%s", o.Key.Name, o.Key.Namespace)},
		Hosts: []string{AnyHost},
	})
	return generated(o, "Gateway", Namespace, GatewayName(o.Key), out)
}

// Hosts lists the hosts of an Ingress's rules, each once, sorted; AnyHost stands for a rule without a host and for the
// default backend.
func Hosts(o *object.Object) []string {
	spec := o.Body.(*networkingv1.Ingress).Spec
	hosts := map[string]bool{}
	for _, r := range spec.Rules {
		if r.HTTP != nil || spec.DefaultBackend != nil {
			hosts[cmp.Or(r.Host, AnyHost)] = true
		}
	}
	if spec.DefaultBackend != nil {
		hosts[AnyHost] = true
	}
	return slices.Sorted(maps.Keys(hosts))
}

// Backends calls f for the Service of every backend of an Ingress, with its JSON path.
func Backends(o *object.Object, f func(field string, service *networkingv1.IngressServiceBackend)) {
	spec := o.Body.(*networkingv1.Ingress).Spec
	call := func(field string, b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil {
			f(field+".service", b.Service)
		}
	}
	call("spec.defaultBackend", spec.DefaultBackend)
	for i, r := range spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for j, p := range r.HTTP.Paths {
			call(fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", i, j), &p.Backend)
		}
	}
}

// Ports finds the port of a backend's Service by name; 0 if there is none.
type Ports func(namespace, service, port string) uint32

// HostName is the name of a host's VirtualService. Hosts that differ only in '.' and '-' have the same.
func HostName(host string, first object.Key) string {
	return strings.ReplaceAll(host, ".", "-") + "-" + first.Name + "-" + object.GeneratedIngressInfix
}

// VirtualService makes the VirtualService of a host from all Ingresses that have rules for it, the oldest first. It has
// the name given and the namespace of the oldest. Exact paths go first, then the longest; of equal paths the older
// Ingress's. Default backends take what is left.
func VirtualService(host, name string, ingresses []*object.Object, ports Ports, domain string) *object.Object {
	var all []route
	for _, o := range ingresses {
		all = append(all, routes(host, o, ports, domain)...)
	}
	slices.SortStableFunc(all, route.before)
	// Of the default backends only the first has requests.
	all = slices.CompactFunc(all, func(a, b route) bool { return a.length == defaultBackend && b.length == defaultBackend })
	hostname := host
	if host != AnyHost && !strings.Contains(host, ".") {
		hostname += "." // a complete name, and not a Service of the namespace
	}
	vs := &networking.VirtualService{Hosts: []string{hostname}, Gateways: gateways(host, ingresses)}
	for _, r := range all {
		vs.Http = append(vs.Http, r.http)
	}
	return generated(ingresses[0], "VirtualService", ingresses[0].Key.Namespace, name, vs)
}

// gateways lists the Gateways of a host: those with a certificate for it, of each name the oldest, because it decides
// the certificate; without any, that of the oldest Ingress. All of them have port 80.
func gateways(host string, ingresses []*object.Object) []string {
	var out []string
	add := func(o *object.Object) {
		if name := Namespace + "/" + GatewayName(o.Key); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	certified := map[string]bool{}
	for _, o := range ingresses {
		for _, t := range o.Body.(*networkingv1.Ingress).Spec.TLS {
			if t.SecretName == "" {
				continue
			}
			names := t.Hosts
			if len(names) == 0 {
				names = []string{AnyHost}
			}
			for _, n := range names {
				if !certified[n] && overlap(n, host) {
					certified[n] = true
					add(o)
				}
			}
		}
	}
	if len(out) == 0 {
		add(ingresses[0])
	}
	return out
}

// overlap reports whether a name may be of both hosts, each of which may be a wildcard.
func overlap(a, b string) bool {
	return a == b || covers(a, b) || covers(b, a)
}

// covers reports whether host is below a wildcard.
func covers(wildcard, host string) bool {
	end, ok := strings.CutPrefix(wildcard, "*")
	return ok && strings.HasSuffix(host, end)
}
