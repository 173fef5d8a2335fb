package input

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/replica"
)

// Services lists the services that the class may address, by exportTo and the Sidecar's egress hosts, sorted by hostname. Of several with
// one hostname only the one that wins is listed: the client's namespace first, then the oldest.
func (r *Reader) Services() []*configv1.Service {
	return derive(r, replica.Topic{Subject: subjectServices}, func(r *Reader) []*configv1.Service {
		return r.servicesBy(r.egress())
	}, slices.Equal)
}

// Service returns the service of a hostname that the class may address, nil if there is none.
func (r *Reader) Service(hostname string) *configv1.Service {
	r.record(replica.ServiceTopic(hostname))
	egress := r.egress()
	for _, svc := range r.view.state.ServicesOf(hostname, r.Class().Namespace) {
		if egress.service(svc) {
			return svc
		}
	}
	return nil
}

// TargetService returns the service of one of the class's own targets, whether the class may address it or not; nil if it is gone.
func (r *Reader) TargetService(t class.Target) *configv1.Service {
	r.record(replica.ServiceTopic(t.Hostname))
	return r.view.state.ServiceIn(t.Hostname, t.Namespace)
}

// Endpoints lists the shards of one port of the service that Service returns for the hostname; nil if there is no such service.
func (r *Reader) Endpoints(hostname string, port uint32) []*configv1.EndpointSet {
	svc := r.Service(hostname)
	if svc == nil {
		return nil
	}
	r.record(replica.EndpointsTopic(hostname, port))
	return r.view.state.Endpoints(hostname, port, svc.GetNamespace())
}

// EgressServices lists the services that one egress listener of the Sidecar may reach, sorted by hostname. A listener without hosts
// reaches what the class's namespace may see.
func (r *Reader) EgressServices(l *networking.IstioEgressListener) []*configv1.Service {
	rules := parseEgress(r.Class().Namespace, l.GetHosts())
	topic := replica.Topic{Subject: subjectEgressServices, A: strings.Join(l.GetHosts(), ",")}
	return derive(r, topic, func(r *Reader) []*configv1.Service { return r.servicesBy(rules) }, slices.Equal)
}

// egress returns what the Sidecar lets the class address.
func (r *Reader) egress() *egress {
	return derive(r, replica.Topic{Subject: subjectEgress}, func(r *Reader) *egress {
		var hosts []string
		for _, l := range sidecarEgress(r.Sidecar()) {
			if len(l.GetHosts()) == 0 {
				return allEgress(r.Class().Namespace)
			}
			hosts = append(hosts, l.GetHosts()...)
		}
		return parseEgress(r.Class().Namespace, hosts)
	}, (*egress).equal)
}

// servicesBy lists the visible services that the rules admit, one per hostname, sorted.
func (r *Reader) servicesBy(rules *egress) []*configv1.Service {
	ns := r.Class().Namespace
	byHost := map[string]*configv1.Service{}
	for _, from := range rules.namespaces() {
		r.record(replica.ServicesInTopics(ns, from)...)
		r.view.state.ServicesIn(ns, from, func(svc *configv1.Service) {
			if !rules.service(svc) {
				return
			}
			if held, ok := byHost[svc.GetHostname()]; !ok || replica.Wins(svc, held, ns) {
				byHost[svc.GetHostname()] = svc
			}
		})
	}
	services := make([]*configv1.Service, 0, len(byHost))
	for _, svc := range byHost {
		services = append(services, svc)
	}
	slices.SortFunc(services, func(a, b *configv1.Service) int { return strings.Compare(a.GetHostname(), b.GetHostname()) })
	return services
}
