package normalise

import (
	"cmp"
	"slices"

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
	m.resolveNames(out, o.Key.Namespace)
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
	m.resolveNames(d, ns)
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

func (m *Mesh) resolveNames(vs *networking.VirtualService, namespace string) {
	virtualservice.ResolveNames(vs, namespace, func(host string) string { return Host(host, namespace, m.cfg.Domain) })
}
