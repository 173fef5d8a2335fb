package input

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Services lists the services that the class may address, by exportTo and the Sidecar's egress hosts, sorted by hostname. Of several with
// one hostname only the one that wins is listed: the client's namespace first, then the oldest.
func (r *Reader) Services() []*configv1.Service {
	return derive(r, mesh.Topic{Subject: subjectServices}, func(r *Reader) []*configv1.Service {
		return r.servicesBy(r.egress())
	}, slices.Equal)
}

// Service returns the service of a hostname that the class may address, nil if there is none.
func (r *Reader) Service(hostname string) *configv1.Service {
	r.record(mesh.ServiceTopic(hostname))
	egress := r.egress()
	found := r.view.state.ServicesOf(hostname, r.client())
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

// TargetService returns the service of one of the class's own targets, whether the class may address it or not; nil if it is gone.
func (r *Reader) TargetService(t class.Target) *configv1.Service {
	r.record(mesh.ServiceTopic(t.Hostname))
	svc := r.view.state.ServiceIn(t.Hostname, t.Namespace, t.Port)
	r.trace.service(svc)
	return svc
}

// Endpoints lists the shards of one port of the service that Service returns for the hostname; nil if there is no such service.
func (r *Reader) Endpoints(hostname string, port uint32) []*configv1.EndpointSet {
	svc := r.Service(hostname)
	if svc == nil {
		return nil
	}
	r.record(mesh.EndpointsTopic(hostname, port))
	sets := r.view.state.Endpoints(svc, port)
	r.trace.endpoints(svc, sets)
	return sets
}

// EgressServices lists the services that one egress listener of the Sidecar may reach, sorted by hostname. A listener without hosts
// reaches what the class's namespace may see.
func (r *Reader) EgressServices(l *networking.IstioEgressListener) []*configv1.Service {
	rules := parseEgress(r.client(), l.GetHosts())
	topic := mesh.Topic{Subject: subjectEgressServices, A: strings.Join(l.GetHosts(), ",")}
	return derive(r, topic, func(r *Reader) []*configv1.Service { return r.servicesBy(rules) }, slices.Equal)
}

// maxAliases bounds how often one ExternalName may lead to the next.
const maxAliases = 8

// Concrete is Service, or for an ExternalName the service that it is another name for; nil if that is none that the class may address.
func (r *Reader) Concrete(hostname string) *configv1.Service {
	svc := r.Service(hostname)
	for range maxAliases {
		if svc.GetExternalName() == "" {
			return svc
		}
		svc = r.Service(svc.GetExternalName())
	}
	return nil
}

// VIPs lists the addresses by which clients of the class connect to a service, networks apart: those that it was given, or those allocated
// for it where the agent tells the workload of them.
func (r *Reader) VIPs(svc *configv1.Service) []string {
	out := mesh.VIPs(svc)
	if len(out) == 0 && r.Class().DNSCapture {
		out = slices.DeleteFunc(mesh.AutoVIPs(svc), func(a string) bool { return !r.Class().Families.Has(a) })
	}
	return out
}

// egress returns what the Sidecar lets the class address.
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

// servicesBy lists the visible services that the rules admit, one per hostname, sorted.
func (r *Reader) servicesBy(rules egress) []*configv1.Service {
	ns := r.client()
	byHost := map[string]*configv1.Service{}
	for _, from := range rules.namespaces() {
		r.record(mesh.ServicesInTopics(ns, from)...)
		r.view.state.ServicesIn(ns, from, func(svc *configv1.Service) {
			if !rules.service(svc) {
				return
			}
			if held, ok := byHost[svc.GetHostname()]; !ok || mesh.Wins(svc, held, ns) {
				byHost[svc.GetHostname()] = svc
			}
		})
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

// addImported adds the services that rules import, under hostnames that they admit none of.
func (r *Reader) addImported(rules egress, byHost map[string]*configv1.Service) {
	if rules.all() {
		return
	}
	ns := r.client()
	r.record(mesh.VirtualServicesTopics(ns, contract.MeshGateway)...)
	for _, vs := range rules.virtualServices(r.view.state.VirtualServices(ns, contract.MeshGateway)) {
		for _, host := range mesh.Destinations(vs.Spec) {
			if byHost[host] != nil {
				continue
			}
			r.record(mesh.ServiceTopic(host))
			found := r.view.state.ServicesOf(host, ns)
			if i := slices.IndexFunc(found, func(svc *configv1.Service) bool { return r.imports(rules, svc) }); i >= 0 {
				byHost[host] = found[i]
			}
		}
	}
}

// ServicesAt lists the services that the class may address at an address and port, sorted by protocol and hostname: by a VIP, or as a
// headless service by the address of an endpoint; address "" means those that have neither. Of several with one hostname only the one
// that Service returns is listed. With protocols, only services with a port of the number and one of them are listed.
func (r *Reader) ServicesAt(port uint32, address string, protocols ...configv1.Protocol) []*configv1.Service {
	if address != "" {
		// There are as many places as services, and few builds ask for each: keeping the answers would cost more than finding them.
		return r.servicesAt(port, address, protocols)
	}
	topic := mesh.Topic{Subject: subjectPlaced, A: strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols)}
	return derive(r, topic, func(r *Reader) []*configv1.Service { return r.servicesAt(port, address, protocols) }, slices.Equal)
}

func (r *Reader) servicesAt(port uint32, address string, protocols []configv1.Protocol) []*configv1.Service {
	r.record(mesh.ServicesAtTopic(port, address))
	found := r.view.state.ServicesAt(r.client(), port, address, protocols...)
	return slices.DeleteFunc(found, func(svc *configv1.Service) bool { return r.Service(svc.GetHostname()) != svc })
}

// Speaks reports whether a service that the class may address by the egress listener, nil meaning any, has a port of that number which
// speaks one of the protocols.
func (r *Reader) Speaks(l *networking.IstioEgressListener, port uint32, protocols ...configv1.Protocol) bool {
	topic := mesh.Topic{
		Subject: subjectSpeaks, A: strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols) + strings.Join(l.GetHosts(), ","),
	}
	return derive(r, topic, func(r *Reader) bool {
		return r.speaks(l, protocols, func(r *Reader, p configv1.Protocol, f func(*configv1.Service) bool) {
			r.record(mesh.SpeakingTopic(port, p))
			r.view.state.Speaking(r.client(), port, p, f)
		})
	}, identical)
}

// SpeaksUnplaced is Speaks for the services that clients of the class reach at no address in particular.
func (r *Reader) SpeaksUnplaced(l *networking.IstioEgressListener, port uint32, protocols ...configv1.Protocol) bool {
	topic := mesh.Topic{
		Subject: subjectSpeaks, A: "unplaced " + strconv.FormatUint(uint64(port), 10), B: fmt.Sprint(protocols) + strings.Join(l.GetHosts(), ","),
	}
	return derive(r, topic, func(r *Reader) bool {
		r.record(mesh.ServicesAtTopic(port, ""))
		return r.speaks(l, protocols, func(r *Reader, p configv1.Protocol, f func(*configv1.Service) bool) {
			r.view.state.SpeakingAt(r.client(), port, "", p, func(svc *configv1.Service) bool {
				return len(r.VIPs(svc)) > 0 || f(svc)
			})
		})
	}, identical)
}

// speaks reports whether each finds, for one of the protocols, a service that the egress listener reaches and that no other of its name
// hides.
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
	imported := map[string]*configv1.Service{}
	r.addImported(rules, imported)
	return len(imported) > 0 && found(func(svc *configv1.Service) bool { return imported[svc.GetHostname()] == svc })
}

// Admits reports whether an egress listener of the Sidecar reaches the service.
func (r *Reader) Admits(l *networking.IstioEgressListener, svc *configv1.Service) bool {
	return r.reaches(parseEgress(r.client(), l.GetHosts()), svc)
}

// AnyUnder reports whether there is a service, exported to the client, that the wildcard host covers.
func (r *Reader) AnyUnder(wildcard string) bool {
	r.record(mesh.AnyUnderTopic(wildcard))
	return r.view.state.AnyUnder(r.client(), wildcard)
}
