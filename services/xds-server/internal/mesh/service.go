package mesh

import (
	"cmp"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// ServiceKey is the key of a service: its hostname, and its visibility (configv1.Service.audience) if it has one.
func ServiceKey(svc *configv1.Service) Key {
	return Key{KindService, svc.GetNamespace(), contract.ServiceName(svc)}
}

func (w *writer) indexService(_ *entry, v *configv1.Service, add bool) {
	put(w, &w.next.services, add, join(v.GetHostname(), v.GetNamespace(), v.GetAudience()), v)
	w.touch(SubjectService, v.GetHostname(), "")
	w.indexCluster(v, add)
	for _, g := range networkGateways(v) {
		put(w, &w.next.networks, add, join(g.GetNetwork(), v.GetHostname(), v.GetNamespace(), v.GetAudience()), v)
		w.touch(SubjectNetworkGateways, g.GetNetwork(), "")
		w.touch(SubjectNetworkGateways, "", "")
	}
	for _, to := range v.GetExportedTo() {
		put(w, &w.next.exported, add, join(to, v.GetNamespace(), v.GetHostname(), v.GetAudience()), v)
		w.touch(SubjectServices, to, v.GetNamespace())
		w.touch(SubjectServices, to, "")
		w.count(&w.next.suffixes, join(to, reversed(v.GetHostname())), add)
		if PrefersSameNode(v) {
			w.countRelevantLabels(to, map[string]string{LabelHostname: ""}, add)
		}
	}
	w.indexAddresses(v, add)
	for wildcard := range Covering(v.GetHostname()) {
		if strings.HasPrefix(wildcard, "*") {
			w.touch(SubjectSuffix, wildcard, "")
			w.countPrivate(explicit(v.GetExportedTo()), add, AnyUnderTopic(wildcard))
		}
	}
	w.countPrivate(explicit(v.GetExportedTo()), add, precedenceTopics(v)...)
	// Of several services with one hostname, clients prefer that of their own namespace.
	others := slices.DeleteFunc(w.next.services.list(v.GetHostname()+sep), func(o *configv1.Service) bool { return o == v })
	if len(others) > 0 {
		w.countPrivate([]string{v.GetNamespace()}, add, precedenceTopics(v)...)
	}
	if len(others) == 1 {
		w.countPrivate([]string{others[0].GetNamespace()}, add, precedenceTopics(others[0])...)
	}
}

// precedenceTopics are the topics whose answers say which of several services with one hostname counts.
func precedenceTopics(v *configv1.Service) []Topic {
	return []Topic{ServiceTopic(v.GetHostname()), {SubjectServices, "*", v.GetNamespace()}, {SubjectServices, "*", ""}}
}

// LabelHostname is the label that says which node a workload, and an endpoint of a service with PrefersSameNode, is on.
const LabelHostname = "kubernetes.io/hostname"

// PrefersSameNode tells whether clients of a service have to know their own node: for internalTrafficPolicy Local or
// trafficDistribution PreferSameNode.
func PrefersSameNode(v *configv1.Service) bool {
	return v.GetNodeLocal() || v.GetTrafficDistribution() == "PreferSameNode"
}

// ServicesOf lists the services of one hostname that are exported to the namespace, one of each namespace. The service
// that wins a conflict comes first, see Wins.
func (s *Snapshot) ServicesOf(hostname, to string) []*configv1.Service {
	var found []*configv1.Service
	s.services.scan(hostname+sep, func(_ string, svc *configv1.Service) bool {
		if !visible(svc.GetExportedTo(), to) {
			return true
		}
		// The index has the service that is exported to all before the others of its namespace.
		if last := len(found) - 1; last >= 0 && found[last].GetNamespace() == svc.GetNamespace() {
			found[last] = svc
		} else {
			found = append(found, svc)
		}
		return true
	})
	slices.SortStableFunc(found, func(a, b *configv1.Service) int { return compareServices(a, b, to) })
	return found
}

// ServiceTopic names the answer of ServicesOf.
func ServiceTopic(hostname string) Topic { return Topic{SubjectService, hostname, ""} }

// compareServices orders services of one hostname by who wins for a client in namespace ns: those of the client's own
// namespace, then Kubernetes Services, whose names no other object can take, then the oldest. Of one namespace's, a
// service that is exported to ns goes before the one that is exported to all.
func compareServices(a, b *configv1.Service, ns string) int {
	if a.GetNamespace() == b.GetNamespace() {
		return cmp.Compare(b.GetAudience(), a.GetAudience())
	}
	first := func(is func(*configv1.Service) bool) int {
		switch {
		case is(a) == is(b):
			return 0
		case is(a):
			return -1
		default:
			return 1
		}
	}
	return cmp.Or(
		first(func(s *configv1.Service) bool { return s.GetNamespace() == ns }),
		first(func(s *configv1.Service) bool { return s.GetSource().GetKind() == "Service" }),
		a.GetCreationTime().AsTime().Compare(b.GetCreationTime().AsTime()),
		strings.Compare(a.GetNamespace(), b.GetNamespace()),
	)
}

// Wins reports whether service a beats b of the same hostname for a client in the namespace: its own namespace's first,
// then a Kubernetes Service, then the oldest.
func Wins(a, b *configv1.Service, client string) bool { return compareServices(a, b, client) < 0 }

// ServiceIn returns the service of a hostname that lives in the namespace, whoever may see it; nil if there is none. Of
// several with different visibility it prefers one that has the port, and then one that the namespace itself sees.
func (s *Snapshot) ServiceIn(hostname, namespace string, port uint32) *configv1.Service {
	var found *configv1.Service
	best := -1
	s.services.scan(join(hostname, namespace)+sep, func(_ string, svc *configv1.Service) bool {
		rank, own := 0, visible(svc.GetExportedTo(), namespace)
		if slices.ContainsFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port }) {
			rank = 2
		}
		if own {
			rank++
		}
		if rank > best || rank == best && own { // the one that is exported to all was the first
			found, best = svc, rank
		}
		return true
	})
	return found
}

// ServiceAnywhere returns the service of a hostname in a namespace, whoever may see it; in any namespace for "", if
// only one has it, or only one has it as a Kubernetes Service: nobody else can make that name mean two services. It is
// nil otherwise.
func (s *Snapshot) ServiceAnywhere(hostname, namespace string) *configv1.Service {
	var all, kubernetes onlyOne
	s.services.scan(hostname+sep, func(_ string, svc *configv1.Service) bool {
		if namespace == "" || svc.GetNamespace() == namespace {
			all.add(svc)
			if svc.GetSource().GetKind() == "Service" {
				kubernetes.add(svc)
			}
		}
		return true
	})
	return cmp.Or(kubernetes.get(), all.get())
}

// onlyOne finds the first service if all are of one namespace. The index has the service that is exported to all before
// the others of its namespace.
type onlyOne struct {
	found   *configv1.Service
	several bool
}

func (o *onlyOne) add(svc *configv1.Service) {
	if o.found == nil {
		o.found = svc
	}
	o.several = o.several || o.found.GetNamespace() != svc.GetNamespace()
}

func (o *onlyOne) get() *configv1.Service {
	if o.several {
		return nil
	}
	return o.found
}

// ServicesIn calls f for every service exported to the namespace, in order of its own namespace and then hostname; ns
// narrows to the services of one namespace, "" means all. A hostname that several namespaces define, or one with
// several visibilities, comes several times.
func (s *Snapshot) ServicesIn(to, ns string, f func(*configv1.Service)) {
	for _, t := range []string{"*", to} {
		prefix := t + sep
		if ns != "" {
			prefix += ns + sep
		}
		s.exported.scan(prefix, func(_ string, svc *configv1.Service) bool {
			f(svc)
			return true
		})
	}
}

// ServicesInTopics names the answers of ServicesIn.
func ServicesInTopics(to, ns string) []Topic {
	return []Topic{{SubjectServices, "*", ns}, {SubjectServices, to, ns}}
}

// AnyUnder reports whether there is a service exported to the namespace that the wildcard host covers.
func (s *Snapshot) AnyUnder(to, wildcard string) bool {
	suffix := reversed(strings.TrimPrefix(wildcard, "*"))
	return s.suffixes.any(join("*", suffix)) || s.suffixes.any(join(to, suffix))
}

// AnyUnderTopic names the answer of AnyUnder.
func AnyUnderTopic(wildcard string) Topic { return Topic{SubjectSuffix, wildcard, ""} }

// reversed returns the text backwards, so that names with one suffix sort together.
func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// Hosts calls f once for every hostname of a service and every host that a VirtualService of the gateway names.
func (s *Snapshot) Hosts(gateway string, f func(host string)) {
	last := ""
	s.services.scan("", func(key string, _ *configv1.Service) bool {
		host, _, _ := strings.Cut(key, sep)
		if host != last {
			last = host
			f(host)
		}
		return true
	})
	last = ""
	s.hostRoutes.scan(gateway+sep, func(key string, _ *VirtualService) bool {
		host, _, _ := strings.Cut(key[len(gateway)+len(sep):], sep)
		if host != last {
			last = host
			if !s.HasHost(host) {
				f(host)
			}
		}
		return true
	})
}

// HasHost reports whether some service has the name.
func (s *Snapshot) HasHost(host string) bool {
	return s.services.any(host + sep)
}

// NamesHost reports whether some VirtualService of the gateway names exactly the host.
func (s *Snapshot) NamesHost(gateway, host string) bool {
	return s.hostRoutes.any(join(gateway, host) + sep)
}

// HostOf returns the host that may begin or cease to be one of Hosts or RoutedHosts, or one that a Sidecar lets clients
// reach, when the answer of the topic changes; ok is false if there is none.
func HostOf(gateway string, t Topic) (host string, ok bool) {
	switch {
	case t.Subject == SubjectService, t.Subject == SubjectDestinations:
		return t.A, true
	case t.Subject == SubjectHostRoutes && t.A == gateway:
		return t.B, true
	case t.Subject == SubjectAttachedRoutes:
		return routedHost(t.B), true
	default:
		return "", false
	}
}
