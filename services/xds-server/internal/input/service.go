package input

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Services lists, sorted by hostname, the services that the class may address by exportTo and the Sidecar's egress
// hosts. Of several with one hostname it has the one that wins: the client's namespace first, then the oldest.
func (r *Reader) Services() []*configv1.Service {
	return derive(r, mesh.Topic{Subject: subjectServices}, func(r *Reader) []*configv1.Service {
		return r.servicesBy(r.egress())
	}, slices.Equal)
}

// Service returns the service of a hostname that the class may address, nil if there is none.
func (r *Reader) Service(hostname string) *configv1.Service {
	r.record(mesh.ServiceTopic(hostname))
	egress := r.egress()
	found := r.view.State().ServicesOf(hostname, r.client())
	i := slices.IndexFunc(found, egress.service)
	if i < 0 {
		i = slices.IndexFunc(found, func(svc *configv1.Service) bool { return r.imports(egress, svc) })
	}
	if i < 0 {
		return nil
	}
	r.trace.service(found[i])
	return found[i]
}

// TargetService returns the service of one of the class's own targets, also if the class may not address it; nil if it
// is gone.
func (r *Reader) TargetService(t class.Target) *configv1.Service {
	r.record(mesh.ServiceTopic(t.Hostname))
	svc := r.view.State().ServiceIn(t.Hostname, t.Namespace, t.Port)
	r.trace.service(svc)
	return svc
}

// Endpoints lists the endpoint sets of one port of a service that the reader has returned, without those of other
// clusters that keep theirs to themselves; nil for no service.
func (r *Reader) Endpoints(svc *configv1.Service, port uint32) []*configv1.EndpointSet {
	if svc == nil {
		return nil
	}
	r.record(mesh.EndpointsTopic(svc.GetHostname(), port))
	sets := r.view.State().Endpoints(svc, port)
	if cluster := r.Class().Cluster; slices.ContainsFunc(sets, func(s *configv1.EndpointSet) bool { return !mesh.Sees(cluster, s) }) {
		sets = lists.Filter(sets, func(s *configv1.EndpointSet) bool { return mesh.Sees(cluster, s) })
	}
	r.trace.endpoints(svc, sets)
	return sets
}

// EgressServices lists, sorted by hostname, the services that one egress listener of the Sidecar admits. A listener
// without hosts admits all that the class's namespace sees.
func (r *Reader) EgressServices(l *networking.IstioEgressListener) []*configv1.Service {
	rules := parseEgress(r.client(), l.GetHosts())
	topic := mesh.Topic{Subject: subjectEgressServices, A: strings.Join(l.GetHosts(), ",")}
	return derive(r, topic, func(r *Reader) []*configv1.Service { return r.servicesBy(rules) }, slices.Equal)
}

// maxAliases bounds how many ExternalNames are followed one after the other.
const maxAliases = 8

// FollowExternalName returns Service(hostname), or the service that its chain of ExternalNames leads to; nil if the
// class may not address that one.
func (r *Reader) FollowExternalName(hostname string) *configv1.Service {
	svc := r.Service(hostname)
	for range maxAliases {
		if svc.GetExternalName() == "" {
			return svc
		}
		svc = r.Service(svc.GetExternalName())
	}
	return nil
}

// VIPs lists the addresses by which clients of the class connect to a service: those that it has in their cluster; if
// it is not there, its first ones, except those that another service has there; or if it has none and the agent
// captures DNS, the automatically allocated ones.
func (r *Reader) VIPs(svc *configv1.Service) []string {
	cluster := r.Class().Cluster
	out := mesh.VIPsIn(svc, cluster)
	if cluster != "" && len(out) > 0 && !r.view.State().IsIn(svc, cluster) {
		out = slices.DeleteFunc(out, func(address string) bool { return r.isTaken(svc, address, cluster) })
	}
	if len(out) == 0 && r.Class().DNSCapture {
		out = slices.DeleteFunc(mesh.AutoVIPs(svc), func(a string) bool { return !r.Class().Families.Has(a) })
	}
	return out
}

// isTaken reports whether a service of the cluster has an address, on a port that the given one, of another cluster,
// has too: clusters may use the same range of VIPs.
func (r *Reader) isTaken(svc *configv1.Service, address, cluster string) bool {
	r.record(mesh.SettingsTopic())
	return slices.ContainsFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool {
		r.record(mesh.ServicesAtTopic(p.GetNumber(), address))
		return slices.ContainsFunc(r.view.State().ServicesAt(r.client(), p.GetNumber(), address), func(other *configv1.Service) bool {
			return other != svc && r.view.State().IsIn(other, cluster) && slices.Contains(mesh.VIPsIn(other, cluster), address)
		})
	})
}

// egress returns what the Sidecar admits.
func (r *Reader) egress() egress {
	return derive(r, mesh.Topic{Subject: subjectEgress}, func(r *Reader) egress {
		listeners := r.EgressListeners()
		if len(listeners) == 0 {
			return allEgress()
		}
		var out egress
		for _, l := range listeners {
			out = append(out, parseEgress(r.client(), l.GetHosts())...)
		}
		return out
	}, egress.equal)
}

// servicesBy lists the visible services that the rules admit or import, one per hostname, sorted.
func (r *Reader) servicesBy(rules egress) []*configv1.Service {
	ns := r.client()
	byHost := map[string]*configv1.Service{}
	for _, svc := range r.admittedServices(rules) {
		if held, ok := byHost[svc.GetHostname()]; !ok || mesh.Wins(svc, held, ns) {
			byHost[svc.GetHostname()] = svc
		}
	}
	r.addImported(rules, byHost)
	services := make([]*configv1.Service, 0, len(byHost))
	for _, svc := range byHost {
		r.trace.service(svc)
		services = append(services, svc)
	}
	slices.SortFunc(services, func(a, b *configv1.Service) int { return strings.Compare(a.GetHostname(), b.GetHostname()) })
	return services
}

// admittedServices lists the visible services that the rules admit. A hostname may come several times.
func (r *Reader) admittedServices(rules egress) (found []*configv1.Service) {
	for _, from := range rules.namespaces() {
		r.record(mesh.ServicesInTopics(r.client(), from)...)
		r.view.State().ServicesIn(r.client(), from, func(svc *configv1.Service) {
			if rules.service(svc) {
				found = append(found, svc)
			}
		})
	}
	return found
}

// addImported adds the services that the rules import, for hostnames of which they admit none.
func (r *Reader) addImported(rules egress, byHost map[string]*configv1.Service) {
	if rules.all() {
		return
	}
	ns := r.client()
	for _, vs := range r.virtualServicesBy(rules) {
		for _, host := range mesh.Destinations(vs.Spec) {
			if byHost[host] != nil {
				continue
			}
			r.record(mesh.ServiceTopic(host))
			found := r.view.State().ServicesOf(host, ns)
			if i := slices.IndexFunc(found, func(svc *configv1.Service) bool { return r.imports(rules, svc) }); i >= 0 {
				byHost[host] = found[i]
			}
		}
	}
}

// ServicesAt lists, sorted by protocol and hostname, the services that the class addresses at a port and an address:
// see mesh.Snapshot.ServicesAt for what the address may be. Of several services with one hostname the one that Service
// returns is listed. With protocols, only services with a port of that number and one of the protocols are listed.
func (r *Reader) ServicesAt(port uint32, address string, protocols ...configv1.Protocol) []*configv1.Service {
	if address != "" {
		// There are as many addresses as services, and few builds ask for each: to keep the answers would cost more
		// than to compute them again.
		return r.servicesAt(port, address, protocols)
	}
	topic := mesh.Topic{Subject: subjectPlaced, A: strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols)}
	return derive(r, topic, func(r *Reader) []*configv1.Service { return r.servicesAt(port, address, protocols) }, slices.Equal)
}

func (r *Reader) servicesAt(port uint32, address string, protocols []configv1.Protocol) []*configv1.Service {
	r.record(mesh.ServicesAtTopic(port, address))
	found := r.view.State().ServicesAt(r.client(), port, address, protocols...)
	return slices.DeleteFunc(found, func(svc *configv1.Service) bool {
		return r.Service(svc.GetHostname()) != svc || r.isOfOtherCluster(svc, address)
	})
}

// isOfOtherCluster reports whether only clients in other clusters connect to the service at an address.
func (r *Reader) isOfOtherCluster(svc *configv1.Service, address string) bool {
	cluster := r.Class().Cluster
	if cluster == "" || svc.GetHeadless() {
		return false
	}
	_, err := netip.ParseAddr(address)
	return err == nil && !slices.Contains(r.VIPs(svc), address) && !slices.Contains(mesh.AutoVIPs(svc), address)
}

// Speaks reports whether a service that the egress listener admits or imports has a port of that number with one of the
// protocols. A nil listener means all services that the class may address.
func (r *Reader) Speaks(l *networking.IstioEgressListener, port uint32, protocols ...configv1.Protocol) bool {
	topic := mesh.Topic{
		Subject: subjectSpeaks, A: strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols) + strings.Join(l.GetHosts(), ","),
	}
	return derive(r, topic, func(r *Reader) bool {
		return r.speaks(l, protocols, func(r *Reader, p configv1.Protocol, f func(*configv1.Service) bool) {
			r.record(mesh.SpeakingTopic(port, p))
			r.view.State().Speaking(r.client(), port, p, f)
		})
	}, identical)
}

// SpeaksUnplaced is Speaks for the services that have no address of their own: the class reaches them by the port
// alone.
func (r *Reader) SpeaksUnplaced(l *networking.IstioEgressListener, port uint32, protocols ...configv1.Protocol) bool {
	topic := mesh.Topic{
		Subject: subjectSpeaks, A: "unplaced " + strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols) + strings.Join(l.GetHosts(), ","),
	}
	return derive(r, topic, func(r *Reader) bool {
		r.record(mesh.ServicesAtTopic(port, ""))
		return r.speaks(l, protocols, func(r *Reader, p configv1.Protocol, f func(*configv1.Service) bool) {
			r.view.State().SpeakingAt(r.client(), port, "", p, func(svc *configv1.Service) bool {
				return len(r.VIPs(svc)) > 0 || f(svc)
			})
		})
	}, identical)
}

// speaks reports whether each finds, for one of the protocols, a service that the egress listener admits or imports and
// that is the one in force for its hostname.
func (r *Reader) speaks(
	l *networking.IstioEgressListener, protocols []configv1.Protocol,
	each func(r *Reader, p configv1.Protocol, f func(*configv1.Service) bool),
) bool {
	rules := r.egress()
	if l != nil {
		rules = parseEgress(r.client(), l.GetHosts())
	}
	found := func(reached func(*configv1.Service) bool) bool {
		ok := false
		for _, p := range protocols {
			each(r, p, func(svc *configv1.Service) bool {
				ok = reached(svc) && r.Service(svc.GetHostname()) == svc
				return !ok
			})
			if ok {
				break
			}
		}
		return ok
	}
	if found(rules.service) {
		return true
	}
	// If no service at all speaks one of the protocols there, no VirtualService can import one.
	if !slices.ContainsFunc(protocols, func(p configv1.Protocol) (some bool) {
		each(r, p, func(*configv1.Service) bool { some = true; return false })
		return some
	}) {
		return false
	}
	imported := map[string]*configv1.Service{}
	r.addImported(rules, imported)
	return len(imported) > 0 && found(func(svc *configv1.Service) bool { return imported[svc.GetHostname()] == svc })
}

// Admits reports whether an egress listener of the Sidecar admits or imports the service.
func (r *Reader) Admits(l *networking.IstioEgressListener, svc *configv1.Service) bool {
	return r.reaches(parseEgress(r.client(), l.GetHosts()), svc)
}

// AnyUnder reports whether the client sees a service that the wildcard host matches.
func (r *Reader) AnyUnder(wildcard string) bool {
	r.record(mesh.AnyUnderTopic(wildcard))
	return r.view.State().AnyUnder(r.client(), wildcard)
}
