package plan

import (
	"slices"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// step is a move of the engine from one state to the next.
type step struct {
	sequence uint64
	state    *mesh.Snapshot
	change   *mesh.Change
}

// advance takes a step, which the tier below has taken. The caller holds the locks.
func (t *tier) advance(s *step) {
	t.sequence = s.sequence
	if !t.concerned(s) {
		t.own.view.SetState(s.state)
		t.done = done{}
		return
	}
	t.done = done{stepping: true, changed: Changes{}}
	defer func() { t.done.stepping = false }()
	namespace := t.own.view.Class().Namespace
	moved := mesh.Topics{}
	if t.overEverybody() {
		moved = s.change.Private[namespace]
	}
	for topic := range moved {
		if s.state.IsPrivate(namespace, topic) {
			t.private.Add(topic)
		} else {
			delete(t.private, topic)
		}
	}
	dependants := t.own.dependants(t.own.view.Advance(s.state, s.change.Topics))
	for _, a := range dependants {
		a.stale = true
	}
	if t.below != nil {
		// What may have become the tier's own, or no longer be.
		t.done.ran = append(t.done.ran, t.below.done.ran...)
		others := t.below.done.ran
		t.considerAll(append(others[:len(others):len(others)], t.affected(moved)...))
	}
	for _, a := range dependants {
		if a.list && a.plan.lists[a.name] == a {
			t.considerList(a.plan, a.name)
		}
	}
	if t.below == nil {
		for _, p := range t.own.types {
			if p.listing {
				for _, host := range p.newHosts(s.change.Topics) {
					t.considerList(p, host)
				}
			}
		}
	}
	for _, a := range dependants {
		if !a.list && a.stale && a.plan.resources[a.name] == a {
			t.settle(a)
		}
	}
	t.inherit()
}

// concerned reports whether the step can have an effect on the tier.
func (t *tier) concerned(s *step) bool {
	if t.below == nil || len(t.below.done.ran) > 0 || len(t.below.done.changed) > 0 || t.own.view.Touched(s.change.Topics) {
		return true
	}
	if t.overEverybody() && len(s.change.Private[t.own.view.Class().Namespace]) > 0 {
		return true
	}
	for topic := range s.change.Topics {
		if _, ok := t.own.nodes[topic]; ok {
			return true
		}
	}
	return false
}

// inherit takes over changes from below that the tier has no item of its own for.
func (t *tier) inherit() {
	if t.below == nil {
		return
	}
	for url, names := range t.below.done.changed {
		items := t.items[url]
		for _, name := range names {
			if items != nil {
				if _, own := items.Get(name); own {
					continue
				}
			}
			t.done.changed.add(url, name)
		}
	}
}

// newHosts lists the hosts that topics are about and that no list of the type is for.
func (p *typePlan) newHosts(topics mesh.Topics) []string {
	var hosts []string
	for t := range topics {
		if host, ok := mesh.HostOf(contract.MeshGateway, t); ok && p.lists[host] == nil {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
