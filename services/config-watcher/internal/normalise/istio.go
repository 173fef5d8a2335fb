package normalise

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate/cipher"
)

// istioConfig builds the IstioConfig of an object; nil if the object is gone or its kind has no resource (a delegate
// VirtualService, a WorkloadGroup).
func (m *Mesh) istioConfig(k object.Key) (proto.Message, error) {
	o := m.configs[k]
	if o == nil {
		return nil, nil
	}
	ns := m.configKey(k).Namespace
	var spec proto.Message
	var exported []string
	switch s := o.Body.(type) {
	case *networking.VirtualService:
		if len(s.Hosts) == 0 {
			return nil, nil
		}
		spec = m.virtualService(o, s)
		exported = m.exportedTo(o)
	case *networking.DestinationRule:
		spec = destinationRule(s, ns, m.cfg.Domain)
		exported = m.exportedTo(o)
	case *networking.Gateway:
		spec = m.gateway(o, s, ns)
		exported = m.cfg.Tenancy.gatewayExportedTo(ns, m.settings.GetRootNamespace())
	case *networking.Sidecar:
		spec = sidecar(s, ns, m.cfg.Domain)
		exported = m.ownOrRoot(ns)
	case *networking.WorkloadGroup:
		return nil, nil
	case proto.Message:
		spec = s
		exported = m.ownOrRoot(ns)
	default:
		return nil, nil
	}
	packed, err := resource.Any(spec)
	if err != nil {
		return nil, err
	}
	return &configv1.IstioConfig{
		Spec: packed, Labels: o.Labels, Annotations: MeshAnnotations(o.Annotations), CreationTime: created(o.Created), ExportedTo: exported,
		Source: sourceRef(o),
	}, nil
}

// ownOrRoot is the exportedTo of kinds without exportTo (Sidecar, PeerAuthentication, ...): their own namespace, or all
// namespaces for an object of the root namespace.
func (m *Mesh) ownOrRoot(namespace string) []string {
	if namespace == m.settings.GetRootNamespace() {
		return []string{exportedToAll}
	}
	return []string{namespace}
}

func destinationRule(s *networking.DestinationRule, ns, domain string) *networking.DestinationRule {
	out := proto.Clone(s).(*networking.DestinationRule)
	out.Host = Host(s.Host, ns, domain)
	return out
}

// gateway resolves the namespace in server hosts and leaves out cipher suites that Envoy does not know.
func (m *Mesh) gateway(o *object.Object, s *networking.Gateway, ns string) *networking.Gateway {
	out := proto.Clone(s).(*networking.Gateway)
	for _, srv := range out.Servers {
		for i, h := range srv.Hosts {
			srv.Hosts[i] = ownNamespace(m.cfg.Tenancy.gatewayHost(o, h), ns)
		}
		knownCiphers(srv.Tls)
	}
	return out
}

// sidecar writes egress hosts as Host does. The namespace "." stays: in the root namespace's Sidecar it means that of
// each workload.
func sidecar(s *networking.Sidecar, ns, domain string) *networking.Sidecar {
	out := proto.Clone(s).(*networking.Sidecar)
	for _, l := range out.Ingress {
		knownCiphers(l.Tls)
	}
	for _, l := range out.Egress {
		for i, h := range l.Hosts {
			l.Hosts[i] = strings.TrimSuffix(strings.ToLower(h), ".")
		}
	}
	if p := out.GetOutboundTrafficPolicy().GetEgressProxy(); p != nil {
		p.Host = Host(p.Host, ns, domain)
	}
	return out
}

func knownCiphers(tls *networking.ServerTLSSettings) {
	if tls != nil {
		tls.CipherSuites = cipher.Known(tls.CipherSuites)
	}
}

func ownNamespace(host, ns string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".") // as Host does
	if rest, ok := strings.CutPrefix(host, "./"); ok {
		return ns + "/" + rest
	}
	return host
}

// virtualService resolves names and merges delegates.
func (m *Mesh) virtualService(o *object.Object, s *networking.VirtualService) *networking.VirtualService {
	out := proto.Clone(s).(*networking.VirtualService)
	resolveNames(out, o.Key.Namespace, m.cfg.Domain)
	if len(out.Gateways) == 0 {
		out.Gateways = []string{contract.MeshGateway}
	}
	var routes []*networking.HTTPRoute
	for _, r := range out.Http {
		if r.Delegate == nil {
			routes = append(routes, r)
			continue
		}
		routes = append(routes, m.delegated(o.Key.Namespace, r)...)
	}
	out.Http = routes
	bindMatches(out)
	return out
}

// delegated returns the routes that replace a delegating route: none if the delegate is missing or not exported to the
// root's namespace.
func (m *Mesh) delegated(namespace string, r *networking.HTTPRoute) []*networking.HTTPRoute {
	ns := cmp.Or(r.Delegate.Namespace, namespace)
	o := m.configs[object.Key{Group: kinds.GroupNetworking, Kind: "VirtualService", Namespace: ns, Name: r.Delegate.Name}]
	if o == nil {
		return nil
	}
	s, ok := o.Body.(*networking.VirtualService)
	if !ok || len(s.Hosts) > 0 || !VisibleTo(ExportedTo(s.ExportTo, m.settings.GetDefaultVirtualServiceExportTo(), ns), namespace) {
		return nil
	}
	d := proto.Clone(s).(*networking.VirtualService)
	resolveNames(d, ns, m.cfg.Domain)
	return MergeDelegate(r, d.Http)
}

// delegateNames lists the VirtualServices that a VirtualService delegates to.
func delegateNames(o *object.Object) []namespacedName {
	var out []namespacedName
	for _, r := range o.Body.(*networking.VirtualService).Http {
		if r.Delegate == nil {
			continue
		}
		if k := (namespacedName{namespace: cmp.Or(r.Delegate.Namespace, o.Key.Namespace), name: r.Delegate.Name}); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// resolveNames makes hosts FQDNs and gateways "<namespace>/<name>", in place.
func resolveNames(vs *networking.VirtualService, ns, domain string) {
	for i, h := range vs.Hosts {
		vs.Hosts[i] = Host(h, ns, domain)
	}
	gateways := func(list []string) {
		for i, g := range list {
			list[i] = contract.GatewayName(g, ns)
		}
	}
	destination := func(d *networking.Destination) {
		if d != nil {
			d.Host = Host(d.Host, ns, domain)
		}
	}
	gateways(vs.Gateways)
	for _, r := range vs.Http {
		for _, m := range r.Match {
			gateways(m.GetGateways())
		}
		for _, d := range r.Route {
			destination(d.Destination)
		}
		destination(r.Mirror)
		for _, mirror := range r.Mirrors {
			destination(mirror.Destination)
		}
	}
	for _, r := range vs.Tls {
		for _, m := range r.Match {
			gateways(m.GetGateways())
			for i, name := range m.GetSniHosts() {
				m.SniHosts[i] = strings.ToLower(name)
			}
		}
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
	for _, r := range vs.Tcp {
		for _, m := range r.Match {
			gateways(m.GetGateways())
		}
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
}
