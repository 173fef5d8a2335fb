package normalise

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/normalise/vip"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// hostKey names a hostname of one namespace. Its Services differ in visibility.
type hostKey = vip.Host

// host is a hostname: its owners, and what they are built into, so that a change of an endpoint or a workload rebuilds
// no Service.
type host struct {
	owners   sets.Small[*owner]
	services []*configv1.Service
	// joiners are the ServiceEntries of registries whose endpoints are added to those of the host.
	joiners sets.Small[*owner]
	// endpoints are the keys of the EndpointSets.
	endpoints []resource.Key
}

// claimants are the owners of a hostname: the Kubernetes Service first, then ServiceEntries, oldest first. The first
// decides. services are the Kubernetes Services, one of each cluster: that of the own cluster first, then the oldest.
// Only the first of them is among the claimants.
func (h *host) claimants() (all, services []*owner) {
	for o := range h.owners.All {
		if o.service != nil {
			services = append(services, o)
		} else {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *owner) int { return object.CompareAge(a.object, b.object) })
	slices.SortFunc(services, func(a, b *owner) int {
		return cmp.Or(trueFirst(a.object.Key.Cluster == "", b.object.Key.Cluster == ""), object.CompareAge(a.object, b.object))
	})
	if len(services) > 0 {
		all = append(services[:1:1], all...)
	}
	return all, services
}

// withoutLaterRegistered drops of the claimants that some namespaces see those that the first does not share the host
// with: what a registry makes is joined with nothing, because whoever may register there could else add endpoints and
// ports to what others declare, or others to his.
func withoutLaterRegistered(all []*owner) []*owner {
	switch {
	case len(all) < 2:
		return all
	case all[0].registered != nil:
		return all[:1]
	}
	return slices.DeleteFunc(all, func(o *owner) bool { return o.registered != nil })
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// rebuildServices builds the Services and then writes the allocated addresses into them, and into others whose address
// moved.
func (m *Mesh) rebuildServices(hosts sets.Set[hostKey]) {
	for h := range hosts {
		services := m.buildServices(h)
		for _, old := range m.hosts[h].services {
			if !slices.ContainsFunc(services, func(s *configv1.Service) bool { return s.Audience == old.Audience }) {
				m.emit(serviceKey(old), nil)
			}
		}
		m.hosts[h].services = services
		if first := oldestWantingVIP(h, services); first != nil {
			m.vips.Want(h, first.GetCreationTime().AsTime())
		} else {
			m.vips.Drop(h)
		}
	}
	maps.Copy(hosts, m.vips.TakeMoved())
	for h := range hosts {
		given := m.vips.Addresses(h)
		for i, s := range m.hosts[h].services {
			var own []string
			if given != nil && wantsVIP(h, s) {
				own = given
			}
			if !slices.Equal(own, s.AutoAddresses) {
				s = proto.CloneOf(s)
				s.AutoAddresses = own
				m.hosts[h].services[i] = s
			}
			if out := m.published(h, s); out != nil {
				m.emit(serviceKey(s), out)
			} else {
				m.emit(serviceKey(s), nil)
			}
		}
	}
}

// published is a service as it is sent. One that a registry makes has its allocated addresses for its own if it has a
// port whose connections are told by their address alone: without an address such a port would take every connection to
// its number, and what is registered elsewhere must not decide about that. It is nil, for none, if there are no
// addresses left.
func (m *Mesh) published(h hostKey, s *configv1.Service) *configv1.Service {
	if len(s.Addresses) > 0 || !slices.ContainsFunc(s.Ports, func(p *configv1.ServicePort) bool { return takesPort(p.Protocol) }) {
		return s
	}
	all, _ := m.hosts[h].claimants()
	if all = m.visibleClaimants(all, s.ExportedTo); len(all) == 0 || all[0].registered == nil {
		return s
	}
	if len(s.AutoAddresses) == 0 {
		m.delta.Errors = append(m.delta.Errors, fmt.Errorf("%s: no address is left to be allocated, so the service is left out", h.Hostname))
		return nil
	}
	s = proto.CloneOf(s)
	s.Addresses, s.AutoAddresses = sortedUnique(s.AutoAddresses), nil
	return s
}

func serviceKey(s *configv1.Service) resource.Key {
	return resource.Key{Kind: resource.KindService, Namespace: s.Namespace, Name: contract.ServiceName(s)}
}

func (m *Mesh) exportedTo(o *object.Object) []string {
	return ObjectExportedTo(o, m.settings.MeshConfig, m.cfg.Tenancy)
}

// visibilities divides the namespaces into sets that see the same claimants of a hostname. The set {"*"} stands for all
// namespaces that no other set names. Most hostnames have one set.
func (m *Mesh) visibilities(claimants []*owner) [][]string {
	exported := make([][]string, 0, 1)
	same := true
	for _, o := range claimants {
		exported = append(exported, m.exportedTo(o.object))
		same = same && slices.Equal(exported[0], exported[len(exported)-1])
	}
	if len(exported) == 0 {
		return nil
	}
	if same {
		return exported[:1]
	}
	var out [][]string
	var seen []string // which claimants each set sees
	for _, namespace := range sortedUnique(slices.Concat(exported...)) {
		var which strings.Builder
		for i, to := range exported {
			if VisibleTo(to, namespace) {
				fmt.Fprint(&which, i, " ")
			}
		}
		i := slices.Index(seen, which.String())
		if i < 0 {
			seen, out = append(seen, which.String()), append(out, nil)
			i = len(out) - 1
		}
		out[i] = append(out[i], namespace)
	}
	return out
}

// visibleClaimants keeps of the claimants of a hostname those that the namespaces of a set see.
func (m *Mesh) visibleClaimants(claimants []*owner, visibility []string) []*owner {
	if len(claimants) < 2 {
		return claimants
	}
	return withoutLaterRegistered(lists.Filter(claimants, func(o *owner) bool { return VisibleTo(m.exportedTo(o.object), visibility[0]) }))
}

// buildServices builds the Services of a hostname, one for each visibility. A Service that has no port and is no alias
// (ExternalName) is left out.
func (m *Mesh) buildServices(h hostKey) []*configv1.Service {
	claimants, services := m.hosts[h].claimants()
	visibilities := m.visibilities(claimants)
	var out []*configv1.Service
	for _, visibility := range visibilities {
		s := m.buildService(h, m.visibleClaimants(claimants, visibility))
		if s == nil {
			continue
		}
		s.ExportedTo = visibility
		m.setClusters(s, services)
		if len(visibilities) > 1 && visibility[0] != exportedToAll {
			s.Audience = visibility[0]
		}
		out = append(out, s)
	}
	return out
}

// oldestWantingVIP returns the oldest of a host's Services that need an allocated address; nil if there is none.
func oldestWantingVIP(h hostKey, services []*configv1.Service) *configv1.Service {
	var first *configv1.Service
	for _, s := range services {
		if wantsVIP(h, s) && (first == nil || s.GetCreationTime().AsTime().Before(first.GetCreationTime().AsTime())) {
			first = s
		}
	}
	return first
}

// buildService builds the Service of a hostname from its claimants; nil if none has a port or is an alias
// (ExternalName).
func (m *Mesh) buildService(h hostKey, claimants []*owner) *configv1.Service {
	var out *configv1.Service
	for _, o := range claimants {
		s := o.build(h.Hostname)
		if o.registered != nil && o.registered.Account != "" && s.ExternalName == "" {
			// Without it, clients accept every identity of the mesh until the first endpoint comes.
			s.SubjectAltNames = []string{m.identity(s.Namespace, o.registered.Account)}
		}
		switch {
		case len(s.Ports) == 0 && s.ExternalName == "":
		case out == nil:
			out = s
		default:
			join(out, s)
		}
	}
	return out
}

// join adds a later claimant of the same hostname: its SANs, and with the same resolution its ports and, from an object
// of the same kind, its addresses. A port number or name that is taken is not added.
func join(into, from *configv1.Service) {
	into.SubjectAltNames = sortedUnique(append(into.SubjectAltNames, from.SubjectAltNames...))
	if into.Resolution != from.Resolution || into.ExternalName != "" {
		return
	}
	if into.Source.Kind == from.Source.Kind {
		into.Addresses = sortedUnique(append(into.Addresses, from.Addresses...))
	}
	for _, p := range from.Ports {
		taken := slices.ContainsFunc(into.Ports, func(q *configv1.ServicePort) bool { return q.Number == p.Number || q.Name == p.Name })
		if !taken {
			into.Ports = append(into.Ports, p)
		}
	}
}

// wantsVIP reports whether a service needs an allocated address: it comes from ServiceEntries alone, its hostname is
// one name, it has no address, no label forbids it, and proxies do not connect to whatever the client asked for.
func wantsVIP(h hostKey, s *configv1.Service) bool {
	if s.Source.Kind != "ServiceEntry" || s.ExternalName != "" || len(s.Addresses) > 0 || strings.HasPrefix(h.Hostname, "*") ||
		s.Labels[object.AutoAllocateLabel] == "false" {
		return false
	}
	if _, err := netip.ParseAddr(h.Hostname); err == nil {
		return false
	}
	return s.Resolution != configv1.Resolution_RESOLUTION_PASSTHROUGH && s.Resolution != configv1.Resolution_RESOLUTION_DYNAMIC_DNS
}
