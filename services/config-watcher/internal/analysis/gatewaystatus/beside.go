package gatewaystatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/hostpattern"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
)

// groupIstio is the API group of Istio's Gateways and VirtualServices.
const groupIstio = "networking.istio.io"

// Workload is one that may serve Gateways of both APIs.
type Workload struct {
	Namespace string
	Labels    map[string]string
}

// beside finds what Gateways of Istio's API take from those of the Gateway API at workloads that serve both. On one
// port these count as younger: listeners of another protocol, or for the same TLS server name, are left out, and a
// VirtualService has its hosts before all routes.
type beside struct {
	*analysis
	cfg    Config
	routes map[listenerAt]map[string][]object.Key // by domain
	// bound are the VirtualServices of a Gateway, sorted.
	bound map[string][]*object.Object
}

type listenerAt struct{ gateway, set, listener string }

func (a *analysis) besideIstio(cfg Config, resources map[object.Key]*configv1.GatewayAPIConfig) {
	b := &beside{analysis: a, cfg: cfg, routes: map[listenerAt]map[string][]object.Key{}, bound: map[string][]*object.Object{}}
	var gateways []*object.Object
	for _, k := range slices.SortedFunc(maps.Keys(a.objects), object.Key.Compare) {
		switch body := a.objects[k].Body.(type) {
		case *networking.Gateway:
			gateways = append(gateways, a.objects[k])
		case *networking.VirtualService:
			for _, name := range body.GetGateways() {
				full := contract.GatewayName(name, k.Namespace)
				b.bound[full] = append(b.bound[full], a.objects[k])
			}
		}
	}
	if len(gateways) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(resources), object.Key.Compare)
	for _, k := range keys {
		for _, l := range resources[k].GetRoute().GetListeners() {
			at := listenerAt{l.GetGateway(), l.GetListenerSet(), l.GetListener()}
			if b.routes[at] == nil {
				b.routes[at] = map[string][]object.Key{}
			}
			for _, h := range l.GetHosts() {
				b.routes[at][h.GetDomain()] = append(b.routes[at][h.GetDomain()], k)
			}
		}
	}
	for _, k := range keys {
		list := resources[k].GetListeners()
		for _, istio := range gateways {
			if namespaces := b.sharedIn(istio, list.GetSelections()); len(namespaces) > 0 {
				for _, l := range list.GetListeners() {
					for _, server := range istio.Body.(*networking.Gateway).GetServers() {
						if server.GetPort().GetNumber() == l.GetPort() && server.GetBind() == "" && protocolOf(l) != udp {
							b.compare(k, list, l, istio, server, namespaces)
						}
					}
				}
			}
		}
	}
}

// sharedIn are the namespaces of the workloads that a Gateway of Istio's API and one of the selections have in common.
func (b *beside) sharedIn(istio *object.Object, selections []*configv1.WorkloadSelection) []string {
	selector := istio.Body.(*networking.Gateway).GetSelector()
	var out []string
	for _, s := range selections {
		if b.cfg.Tenants && istio.Key.Namespace != s.GetNamespace() && istio.Key.Namespace != b.cfg.MeshNamespace {
			continue
		}
		if object.HasLabels(s.GetLabels(), selector) || slices.ContainsFunc(b.cfg.Workloads, func(w Workload) bool {
			return w.Namespace == s.GetNamespace() && object.HasLabels(w.Labels, s.GetLabels()) && object.HasLabels(w.Labels, selector)
		}) {
			out = append(out, s.GetNamespace())
		}
	}
	return out
}

// Protocols of a port, of which servers and listeners must be of one.
const (
	http = "HTTP"
	tls  = "TLS"
	tcp  = "TCP"
	udp  = "UDP"
)

func protocolOf(l *configv1.GatewayListener) string {
	switch l.GetProtocol() {
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP:
		return http
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
		return tls
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP:
		return udp
	}
	return tcp
}

func protocolOfServer(s *networking.Server) string {
	switch p := contract.ParseProtocol(s.GetPort().GetProtocol()); {
	case contract.IsHTTP(p), p == configv1.Protocol_PROTOCOL_HTTP_PROXY:
		return http
	case contract.IsTLS(p):
		return tls
	}
	return tcp
}

// compare looks at a listener of k and a server of a Gateway of Istio's API on its port.
func (b *beside) compare(k object.Key, list *configv1.GatewayListeners, l *configv1.GatewayListener, istio *object.Object,
	server *networking.Server, namespaces []string,
) {
	of := protocolOfServer(server)
	switch {
	case of != protocolOf(l):
		b.taken(k, l, istio, "for "+of)
	case of == http:
		at := listenerAt{list.GetGateway(), list.GetListenerSet(), l.GetName()}
		for _, vs := range b.visible(istio, namespaces) {
			if len(vs.Body.(*networking.VirtualService).GetHttp()) > 0 {
				b.shadowed(at, l, istio, server, vs)
			}
		}
	case of == tcp:
		if slices.ContainsFunc(b.visible(istio, namespaces), func(vs *object.Object) bool {
			return len(vs.Body.(*networking.VirtualService).GetTcp()) > 0
		}) {
			b.taken(k, l, istio, "with routes")
		}
	default:
		if contract.ParseProtocol(server.GetPort().GetProtocol()) != configv1.Protocol_PROTOCOL_HTTPS {
			return // what it takes depends on the server names of its VirtualServices' routes
		}
		for _, entry := range server.GetHosts() {
			if _, name := split(entry); strings.EqualFold(name, cmp.Or(l.GetHostname(), "*")) {
				b.taken(k, l, istio, fmt.Sprintf("for HTTPS with host %q", name))
				break
			}
		}
	}
}

// visible are the VirtualServices of a Gateway that workloads of one of the namespaces see.
func (b *beside) visible(istio *object.Object, namespaces []string) []*object.Object {
	all := b.bound[istio.Key.Namespace+"/"+istio.Key.Name]
	return slices.DeleteFunc(slices.Clone(all), func(vs *object.Object) bool {
		return !slices.ContainsFunc(namespaces, func(ns string) bool { return b.cfg.Visible == nil || b.cfg.Visible(vs, ns) })
	})
}

// taken reports a listener that is left out.
func (b *beside) taken(k object.Key, l *configv1.GatewayListener, istio *object.Object, what string) {
	b.at = b.objects[k]
	b.add(finding.ListenerTaken, listenerField(b.at, l.GetName()),
		fmt.Sprintf("Gateway %s/%s of %s, which the same workloads serve, has port %d %s, and wins", istio.Key.Namespace, istio.Key.Name,
			groupIstio, l.GetPort(), what), "choose another port or hostname, or other workloads, or remove the server there")
}

// shadowed reports the routes of a listener for hosts that a VirtualService has at a server of the same port.
func (b *beside) shadowed(at listenerAt, l *configv1.GatewayListener, istio *object.Object, server *networking.Server, vs *object.Object) {
	for _, host := range vs.Body.(*networking.VirtualService).GetHosts() {
		for _, entry := range server.GetHosts() {
			from, name := split(entry)
			if from == "." {
				from = istio.Key.Namespace
			}
			domain, ok := hostpattern.Narrower(strings.ToLower(name), strings.ToLower(host))
			if !ok || from != "*" && from != vs.Key.Namespace {
				continue
			}
			if domain == "*" {
				domain = ""
			}
			for _, route := range b.routes[at][domain] {
				b.at = b.objects[route]
				b.add(finding.RouteShadowed, "spec.hostnames",
					fmt.Sprintf("VirtualService %s/%s has host %q at Gateway %s/%s of %s, which the workloads of listener %s of Gateway %s serve on "+
						"port %d too, and wins", vs.Key.Namespace, vs.Key.Name, cmp.Or(domain, "*"), istio.Key.Namespace, istio.Key.Name, groupIstio,
						l.GetName(), at.gateway, l.GetPort()), "remove the VirtualService's host, or that of the route")
			}
		}
	}
}

// split divides a host of a server into the namespace that may have it, "*" for all, and the name.
func split(entry string) (namespace, name string) {
	if ns, name, found := strings.Cut(entry, "/"); found {
		return ns, name
	}
	return "*", entry
}

// listenerField is the path of a listener.
func listenerField(o *object.Object, name string) string {
	return fmt.Sprintf("spec.listeners[%d]", slices.Index(gatewayapi.ListenersOf(o), name))
}
