package plan

import (
	"slices"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// update moves the engine from one snapshot of the mesh to the next.
type update struct {
	sequence uint64
	state    *mesh.Snapshot
	change   *mesh.Change
	// affected are the plans on which the update can have an effect: the lowest, those that depend on a topic of the
	// change, and those above a plan that has changed.
	affected scopePlans
}

// affectAbove adds the plans above one that has applied the update, as far as what it has done can have an effect on
// them. The caller holds Engine.mu and Engine.updateMu.
func (u *update) affectAbove(s *scopePlan) {
	did := s.resultOf(u)
	changed := len(did.rebuilt) > 0 || len(did.changed) > 0
	if !changed && len(did.redirected) == 0 {
		return
	}
	for above := range s.above {
		if changed || len(above.privateTopics) > 0 {
			u.affected.add(above)
		}
	}
}

// updateResult is what an update did to a scope plan. Plans above read it when the update is applied to them.
type updateResult struct {
	// running is true while the update is applied; only then rebuilt and changed grow.
	running bool
	// rebuilt are the nodes of the plan and those below that were built, added or removed.
	rebuilt []*node
	// changed are the items that may be different.
	changed Changes
	// redirected are the derived answers of the plan's view that depend on other topics than before and are equal.
	redirected mesh.Topics
}

// addRebuilt adds a node to the result of the update that is running, if one is.
func (s *scopePlan) addRebuilt(n *node) {
	if s.lastUpdate.running {
		s.lastUpdate.rebuilt = append(s.lastUpdate.rebuilt, n)
	}
}

// addChanged adds an item to the result of the update that is running, if one is.
func (s *scopePlan) addChanged(url, name string) {
	if s.lastUpdate.running {
		s.lastUpdate.changed.add(url, name)
	}
}

// resultOf returns what an update did to the plan: nothing, if it was not applied because the plan was not affected.
func (s *scopePlan) resultOf(u *update) updateResult {
	if s.sequence != u.sequence {
		return updateResult{}
	}
	return s.lastUpdate
}

// forgetUpdate drops what the last update did, once the plans above have applied it.
func (s *scopePlan) forgetUpdate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastUpdate = updateResult{}
}

// apply applies an update that affects the plan and that the plans below have applied. The caller holds the lock.
func (s *scopePlan) apply(u *update) {
	if s.closed {
		return
	}
	s.sequence = u.sequence
	s.lastUpdate = updateResult{running: true, changed: Changes{}}
	defer func() { s.lastUpdate.running = false }()
	privateChanges := s.updatePrivateTopics(u)
	touched := s.graph.view.Advance(u.state, u.change.Topics)
	s.lastUpdate.redirected = s.graph.view.Redirected()
	invalid := s.graph.dependents(touched)
	for _, n := range invalid {
		n.stale = true
	}
	if s.below != nil {
		// For nodes below that were built, whose topics became private, or which depend by an answer on other topics
		// than before, this plan may need its own results, or no longer need them.
		below := s.below.resultOf(u)
		s.lastUpdate.rebuilt = append(s.lastUpdate.rebuilt, below.rebuilt...)
		s.refreshAll(slices.Concat(below.rebuilt, s.dependentsBelow(privateChanges), s.redirectedBelow(below.redirected)))
	}
	for _, n := range invalid {
		if n.list && n.plan.lists[n.name] == n {
			s.refreshList(n.plan, n.name)
		}
	}
	if s.below == nil {
		for _, host := range s.graph.newHosts(touched) {
			for _, p := range s.graph.types {
				if p.wildcard {
					s.refreshList(p, host)
				}
			}
		}
	}
	for _, n := range invalid {
		if !n.list && n.stale && n.plan.resources[n.name] == n {
			s.refreshNode(n)
		}
	}
	s.addInheritedChanges(u)
}

// updatePrivateTopics updates the plan's private topics and returns those that the update is about.
func (s *scopePlan) updatePrivateTopics(u *update) mesh.Topics {
	if !s.isAboveMesh() {
		return nil
	}
	namespace := s.graph.view.Class().Namespace
	changes := u.change.Private[namespace]
	for topic := range changes {
		if u.state.IsPrivate(namespace, topic) {
			s.privateTopics.Add(topic)
		} else {
			delete(s.privateTopics, topic)
		}
	}
	return changes
}

// addInheritedChanges adds the changes of the plan below for which this plan has no item of its own.
func (s *scopePlan) addInheritedChanges(u *update) {
	if s.below == nil {
		return
	}
	for url, names := range s.below.resultOf(u).changed {
		items := s.items[url]
		for _, name := range names {
			if items != nil {
				if _, hasItem := items.Get(name); hasItem {
					continue
				}
			}
			s.lastUpdate.changed.add(url, name)
		}
	}
}
