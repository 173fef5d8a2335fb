package normalise

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise/virtualservice"
	"fairlead.dev/services/config-watcher/internal/object"
)

var virtualServiceKind = &rules[object.Object]{
	index: func(m *Mesh, old, now *object.Object) {
		for _, d := range delegateNames(old) {
			m.delegates.Remove(d, old.Key)
		}
		for _, d := range delegateNames(now) {
			m.delegates.Add(d, now.Key)
		}
	},
	touch: func(m *Mesh, o *object.Object) {
		for root := range m.delegates[nameOf(o.Key)].All {
			m.dirty.objects.Add(root)
		}
	},
	build: istioConfig((*Mesh).virtualService),
}

// virtualService resolves names and merges delegates. A delegate is no resource of its own.
func (m *Mesh) virtualService(o *object.Object, s *networking.VirtualService) (*networking.VirtualService, []string) {
	if len(s.Hosts) == 0 {
		return nil, nil
	}
	out := proto.CloneOf(s)
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
	virtualservice.BindMatches(out)
	return out, m.exportedTo(o)
}

// delegated returns the routes that replace a delegating route: none if the delegate is missing or not exported to the
// root's namespace.
func (m *Mesh) delegated(namespace string, r *networking.HTTPRoute) []*networking.HTTPRoute {
	ns := cmp.Or(r.Delegate.Namespace, namespace)
	o := m.stored[object.Key{Group: kinds.GroupNetworking, Kind: "VirtualService", Namespace: ns, Name: r.Delegate.Name}].object
	if o == nil {
		return nil
	}
	s := o.Body.(*networking.VirtualService)
	if len(s.Hosts) > 0 || !VisibleTo(ExportedTo(s.ExportTo, m.settings.GetDefaultVirtualServiceExportTo(), ns), namespace) {
		return nil
	}
	d := proto.CloneOf(s)
	resolveNames(d, ns, m.cfg.Domain)
	return virtualservice.MergeDelegate(r, d.Http)
}

// delegateNames lists the VirtualServices that a VirtualService delegates to; none for nil.
func delegateNames(o *object.Object) []namespacedName {
	if o == nil {
		return nil
	}
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
	virtualservice.EachMatch(vs, func(m virtualservice.SourceMatch) { gateways(m.GetGateways()) })
	for _, r := range vs.Http {
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
			for i, name := range m.GetSniHosts() {
				m.SniHosts[i] = strings.ToLower(name)
			}
		}
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
	for _, r := range vs.Tcp {
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
}
