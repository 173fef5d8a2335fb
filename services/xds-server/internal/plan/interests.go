package plan

import (
	"sync"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// scopePlans is a set of plans.
type scopePlans map[*scopePlan]struct{}

func (p scopePlans) add(s *scopePlan) { p[s] = struct{}{} }

// interests are the plans that depend on each topic, so that an update finds those that it affects without asking all
// of them. It is safe for concurrent use.
type interests struct {
	mu    sync.Mutex
	plans map[mesh.Topic]scopePlans
}

// set notes whether a plan depends on a topic.
func (i *interests) set(t mesh.Topic, s *scopePlan, depends bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	plans, ok := i.plans[t]
	switch {
	case !depends:
		if delete(plans, s); len(plans) == 0 {
			delete(i.plans, t)
		}
	case !ok:
		i.plans[t] = scopePlans{s: {}}
	default:
		plans.add(s)
	}
}

// addTo adds the plans that depend on one of the topics to a set.
func (i *interests) addTo(set scopePlans, topics mesh.Topics) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for t := range topics {
		for s := range i.plans[t] {
			set.add(s)
		}
	}
}
