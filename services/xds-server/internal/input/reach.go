package input

import (
	"slices"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Hosts calls f once for every host that the class reaches, see Reaches. Where a Sidecar names the namespaces that it
// admits, the objects of other namespaces are not looked at.
func (r *Reader) Hosts(f func(host string)) {
	rules := r.egress()
	if rules.all() {
		state := r.view.State()
		state.Hosts(contract.MeshGateway, f)
		if r.Class().Type == class.Router {
			state.RoutedHosts(func(host string) {
				if !state.HasHost(host) && !state.NamesHost(contract.MeshGateway, host) {
					f(host)
				}
			})
		}
		return
	}
	known := map[string]bool{}
	add := func(host string) {
		if !known[host] {
			known[host] = true
			f(host)
		}
	}
	for _, svc := range r.admittedServices(rules) {
		add(svc.GetHostname())
	}
	for _, vs := range r.virtualServicesBy(rules) {
		for _, host := range vs.Spec.GetHosts() {
			add(host)
		}
		for _, host := range mesh.Destinations(vs.Spec) {
			if !known[host] && r.Service(host) != nil {
				add(host)
			}
		}
	}
}

// Reaches reports whether the class may have resources because of a host: whether Service returns one for it, or one of
// VirtualServicesOf the mesh names it. A class that no Sidecar limits reaches all hosts of Snapshot.Hosts, also
// services that are not exported to it; a router also those of Snapshot.RoutedHosts.
func (r *Reader) Reaches(host string) bool {
	if r.egress().all() {
		return r.view.State().HasHost(host) || r.view.State().NamesHost(contract.MeshGateway, host) ||
			r.Class().Type == class.Router && r.view.State().RoutesHost(host)
	}
	return r.Service(host) != nil || slices.ContainsFunc(r.VirtualServicesOf(contract.MeshGateway, host), func(vs *mesh.VirtualService) bool {
		return slices.Contains(vs.Spec.GetHosts(), host)
	})
}

// ReachMoved reports whether the class may reach other hosts after a change of topics, as Advance returns them, than
// those that mesh.HostOf names: its Sidecar admits others.
func ReachMoved(topics mesh.Topics) bool { return topics.Has(mesh.Topic{Subject: subjectEgress}) }
