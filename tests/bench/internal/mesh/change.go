package mesh

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Change is one revision.
type Change struct {
	Upserts []*configv1.Resource
	Removed []*configv1.ResourceKey
	// Host is part of the names of all resources that proxies receive because of the change; empty if they receive
	// nothing.
	Host string
}

// Label is another label on a Pod that no service selects.
func (m Spec) Label(turn int) Change {
	return Change{Upserts: []*configv1.Resource{idle(turn)}}
}

// PodLabel is another label on a Pod behind a service, which config-watcher says of the Pod and of its endpoints; no
// selector tests it.
func (m Spec) PodLabel(turn int) Change {
	s := m.service(m.Services - 1) // no rule is about the last
	mark := fmt.Sprint(turn)
	return Change{Upserts: []*configv1.Resource{workload(s, 0, true, mark), endpoints(s, 0, mark)}}
}

// Unknown is an object of a kind that no proxy's configuration is made of.
func (m Spec) Unknown(turn int) Change {
	s := m.service(0)
	return Change{Upserts: []*configv1.Resource{config("WorkloadGroup", s, &networking.WorkloadGroup{
		Metadata: &networking.WorkloadGroup_ObjectMeta{Labels: map[string]string{"turn": fmt.Sprint(turn)}},
		Template: &networking.WorkloadEntry{},
	})}}
}

// Resync sends what is there again, with equal hashes: a hundred services and their endpoints.
func (m Spec) Resync(int) Change {
	var c Change
	for i := range min(100, m.Services) {
		c.Upserts = append(c.Upserts, serviceOf(m.service(i), "*"), endpoints(m.service(i), 0, ""))
	}
	return c
}

// Endpoints gives a service that all proxies watch other addresses.
func (m Spec) Endpoints(turn int) Change {
	s := m.service(m.Services - 2)
	return Change{Upserts: []*configv1.Resource{endpoints(s, turn, "")}, Host: s.host()}
}

// FewEndpoints gives the service that one proxy in a hundred watches other addresses.
func (m Spec) FewEndpoints(turn int) Change {
	return Change{Upserts: []*configv1.Resource{PrivateEndpoints(turn)}, Host: private + "." + Few}
}

// Rule changes one VirtualService.
func (m Spec) Rule(turn int) Change {
	return Change{Upserts: []*configv1.Resource{VirtualService(7, turn)}, Host: ruled(7).host()}
}

// Add adds a service with its endpoints and Pods.
func (m Spec) Add(turn int) Change {
	s := m.added(turn)
	c := Change{Upserts: []*configv1.Resource{serviceOf(s, "*"), endpoints(s, 0, "")}, Host: s.host()}
	for r := range replicas {
		c.Upserts = append(c.Upserts, workload(s, r, true, ""))
	}
	return c
}

// Remove takes it out again.
func (m Spec) Remove(turn int) Change {
	c := Change{Host: m.added(turn).host()}
	for _, r := range m.Add(turn).Upserts {
		c.Removed = append(c.Removed, r.GetKey())
	}
	return c
}

// added is a service beyond those of the mesh, one that speaks HTTP.
func (m Spec) added(turn int) service {
	return m.service((m.Services+99)/100*100 + turn/30*100 + turn%30)
}

// stay is how many services come before the first of a busy mesh goes.
const stay = 32

// Mixed gives the n-th change of a busy mesh: of ten six are endpoints', one is of each of a VirtualService, a
// DestinationRule, a label, a service that comes or goes.
func (m Spec) Mixed(n int) Change {
	// How often the rule's turn has come: what it is set to repeats after so many, and each change must be one.
	turn := 1 + n/10/m.Rules
	switch n % 10 {
	case 0:
		return Change{Upserts: []*configv1.Resource{VirtualService(n/10%m.Rules, turn)}, Host: ruled(n / 10 % m.Rules).host()}
	case 1:
		// Of another host than the VirtualService before.
		r := (n/10 + m.Rules/2) % m.Rules
		return Change{Upserts: []*configv1.Resource{DestinationRule(r, turn)}, Host: ruled(r).host()}
	case 2:
		return m.PodLabel(1 + n)
	case 3:
		// A service stays for some seconds: one that went at once might never be sent.
		if turn := n / 20; n/10%2 == 1 && turn >= stay {
			return m.Remove(turn - stay)
		}
		if n/10%2 == 1 {
			return m.PodLabel(1 + n)
		}
		return m.Add(n / 20)
	default:
		return m.OtherEndpoints(n)
	}
}

// OtherEndpoints gives services in turn other addresses, none that a rule is about: until every proxy has received a
// change, its name stands for no other one.
func (m Spec) OtherEndpoints(n int) Change {
	first := m.Rules + m.Rules/9 + 20
	s := m.service(first + n%(m.Services-first-2))
	// Addresses repeat after 50 turns: each change must be one.
	return Change{Upserts: []*configv1.Resource{endpoints(s, 1+n/(m.Services-first-2)%49, "")}, Host: s.host()}
}

// OtherRule changes VirtualServices, for even n, and DestinationRules in turn, those of other hosts.
func (m Spec) OtherRule(n int) Change {
	r, turn := n%m.Rules, 1+n/m.Rules
	if n%2 == 1 {
		return Change{Upserts: []*configv1.Resource{DestinationRule(r, turn)}, Host: ruled(r).host()}
	}
	return Change{Upserts: []*configv1.Resource{VirtualService(r, turn)}, Host: ruled(r).host()}
}
