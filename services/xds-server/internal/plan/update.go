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
}

// updateResult is what the last update did to a scope plan. Plans above read it when the update is applied to them.
type updateResult struct {
	// running is true while the update is applied; only then rebuilt and changed grow.
	running bool
	// rebuilt are the nodes of the plan and those below that were built, added or removed.
	rebuilt []*node
	// changed are the items that may be different.
	changed Changes
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

// apply applies an update that the plans below have applied. The caller holds the lock.
func (s *scopePlan) apply(u *update) {
	s.sequence = u.sequence
	if !s.isAffected(u) {
		s.graph.view.SetState(u.state)
		s.lastUpdate = updateResult{}
		return
	}
	s.lastUpdate = updateResult{running: true, changed: Changes{}}
	defer func() { s.lastUpdate.running = false }()
	privateChanges := s.updatePrivateTopics(u)
	touched := s.graph.view.Advance(u.state, u.change.Topics)
	invalid := s.graph.dependents(touched)
	for _, n := range invalid {
		n.stale = true
	}
	if s.below != nil {
		// For nodes below that were built, or whose topics became private, this plan may need its own results, or no
		// longer need them.
		rebuilt := s.below.lastUpdate.rebuilt
		s.lastUpdate.rebuilt = append(s.lastUpdate.rebuilt, rebuilt...)
		s.refreshAll(slices.Concat(rebuilt, s.dependentsBelow(privateChanges)))
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
	s.addInheritedChanges()
}

// isAffected reports whether the update can have an effect on the plan.
func (s *scopePlan) isAffected(u *update) bool {
	if s.below == nil || len(s.below.lastUpdate.rebuilt) > 0 || len(s.below.lastUpdate.changed) > 0 ||
		s.graph.view.IsAffected(u.change.Topics) {
		return true
	}
	if s.isAboveMesh() && len(u.change.Private[s.graph.view.Class().Namespace]) > 0 {
		return true
	}
	for topic := range u.change.Topics {
		if _, ok := s.graph.dependencies[topic]; ok {
			return true
		}
	}
	return false
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
func (s *scopePlan) addInheritedChanges() {
	if s.below == nil {
		return
	}
	for url, names := range s.below.lastUpdate.changed {
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
