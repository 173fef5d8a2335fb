package plan

import (
	"sync"
	"time"

	"github.com/tidwall/btree"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// scopePlan is the plan of one scope: of the mesh, of a namespace above it, or of a workload, which is of one class,
// above that. It has nodes and items only for results that may differ from those of the plan below: because the node
// below has read something that only this scope has, or because it depends on a topic with another answer here.
type scopePlan struct {
	below *scopePlan // nil for the lowest
	scope input.Scope
	hash  class.Hash
	class *Class // nil for the plans of the mesh and of namespaces
	// above are the plans directly above, and retained is true if the prebuilding keeps the plan without any; Engine.mu
	// guards both.
	above    scopePlans
	retained bool
	closed   bool

	// mu is held for writing while the plan changes. Who changes a plan above holds it for reading: see lock.
	mu       sync.RWMutex
	sequence uint64 // of the engine's last update that was applied; later ones have not affected the plan
	graph    *graph
	// privateTopics are the topics whose answer in this scope is not that of the plan below.
	privateTopics mesh.Topics
	// narrower are the nodes whose result holds for a narrower scope than the plan's: plans above build their own.
	narrower map[*node]struct{}
	// items by type URL are those that differ from the items of the plan below, totals their wildcard totals.
	items  map[string]*btree.Map[string, Item]
	totals map[string]*wildcardTotal
	// unsubscribed are the resources whose last subscriber has gone, and since when.
	unsubscribed map[*node]time.Time
	// lastUpdate is what the update of sequence has done, until forgetUpdate.
	lastUpdate updateResult

	// publishMu serialises snapshot between goroutines that hold mu for reading.
	publishMu sync.Mutex
	published map[string]*TypeSnapshot
	// dirty are, by type URL, the names whose item differs from the one in published.
	dirty map[string]map[string]struct{}
}

// newScopePlan puts a new plan above another, which is nil for the lowest. The caller holds Engine.mu.
func newScopePlan(e *Engine, key *class.Key, scope input.Scope, below *scopePlan) *scopePlan {
	s := &scopePlan{
		below: below, above: scopePlans{}, scope: scope, hash: key.Hash(), sequence: e.sequence,
		privateTopics: mesh.Topics{}, narrower: map[*node]struct{}{},
		items: map[string]*btree.Map[string, Item]{}, totals: map[string]*wildcardTotal{}, unsubscribed: map[*node]time.Time{},
		published: map[string]*TypeSnapshot{}, dirty: map[string]map[string]struct{}{},
	}
	s.graph = newGraph(e, key, s)
	if below != nil {
		below.above.add(s)
	}
	if s.isAboveMesh() {
		e.State().Private(key.Namespace, s.privateTopics.Add)
	}
	return s
}

// isAboveMesh reports whether this is the plan of a namespace directly above that of the mesh.
func (s *scopePlan) isAboveMesh() bool { return s.below != nil && s.below.scope == input.MeshScope }

// lock locks the plan for a change and all plans below it for reading. The result unlocks them.
func (s *scopePlan) lock() (unlock func()) {
	s.mu.Lock()
	s.below.rlock()
	return func() {
		s.below.runlock()
		s.mu.Unlock()
	}
}

// rlock locks the plan, which may be nil, and all below it for reading.
func (s *scopePlan) rlock() {
	for ; s != nil; s = s.below {
		s.mu.RLock()
	}
}

func (s *scopePlan) runlock() {
	for ; s != nil; s = s.below {
		s.mu.RUnlock()
	}
}

// changeBelow calls change with the plan below locked for a change. The caller holds the lock of s. Other goroutines
// may change the plans below before and after the call, so the caller must not use what it has looked up there before.
func (s *scopePlan) changeBelow(change func(below *scopePlan)) {
	s.below.runlock()
	defer s.below.rlock()
	defer s.below.lock()()
	change(s.below)
}

// typePlan returns the nodes of a type; nil if there is no translator for it.
func (s *scopePlan) typePlan(url string) *typePlan {
	p := s.graph.typePlan(url)
	if p != nil && s.items[url] == nil {
		s.items[url], s.totals[url] = btree.NewMap[string, Item](0), &wildcardTotal{}
	}
	return p
}

// snapshot publishes the items of a type if they have changed and returns the published ones. The caller holds mu, at
// least for reading.
func (s *scopePlan) snapshot(url string) *TypeSnapshot {
	if s.items[url] == nil {
		return emptyType
	}
	below := emptyType
	if s.below != nil {
		below = s.below.snapshot(url)
	}
	s.publishMu.Lock()
	defer s.publishMu.Unlock()
	published := s.published[url]
	switch {
	case published == nil || len(s.dirty[url]) > 0:
		published = &TypeSnapshot{items: s.items[url].Copy(), below: below}
		delete(s.dirty, url)
	case published.below != below:
		published = &TypeSnapshot{items: published.items, below: below}
	default:
		return published
	}
	if s.below == nil {
		published.hasTotal, published.total = true, *s.totals[url]
	}
	s.published[url] = published
	return published
}

// markDirty notes whether an item differs from the published one.
func (s *scopePlan) markDirty(url, name string) {
	published := s.published[url]
	if published == nil {
		return
	}
	was, hadItem := published.items.Get(name)
	item, hasItem := s.items[url].Get(name)
	if hasItem == hadItem && item == was {
		delete(s.dirty[url], name)
		return
	}
	if s.dirty[url] == nil {
		s.dirty[url] = map[string]struct{}{}
	}
	s.dirty[url][name] = struct{}{}
}

// resolved is what a plan and those below it have of a resource.
type resolved struct {
	// node that has built it, in the highest of the plans; nil if none has.
	node *node
	// listed counts the lists in force that name it.
	listed int
}

func (r resolved) item() Item {
	if r.node == nil {
		return Item{}
	}
	return r.node.item(r.listed > 0)
}

// lookup finds a resource in the plan and those below. s may be nil.
func (s *scopePlan) lookup(url, name string) resolved {
	if s == nil {
		return resolved{}
	}
	r := s.below.lookup(url, name)
	p := s.graph.types[url]
	if p == nil {
		return r
	}
	if n, ok := p.resources[name]; ok {
		r.listed += n.listed - n.hidden
		switch {
		case n.built:
			r.node = n
		case n.hidden > 0 && r.listed == 0:
			// The plan's lists have replaced all that name the resource, and nobody here subscribes to it: what the
			// plans below have built may not be right here. A plan above may still name it.
			r.node = nil
		}
	}
	return r
}

// lookupList finds the list of a host in the plan and those below. s may be nil.
func (s *scopePlan) lookupList(url, host string) *node {
	if s == nil {
		return nil
	}
	if p := s.graph.types[url]; p != nil {
		if n, ok := p.lists[host]; ok && n.built {
			return n
		}
	}
	return s.below.lookupList(url, host)
}

// mayDiffer reports whether the result of a node of a plan below may be another one in this scope.
func (s *scopePlan) mayDiffer(below *node) bool {
	if below.scope >= s.scope && below.scope > s.below.scope {
		return true
	}
	// Only a plan directly above the mesh's has private topics, so the node is the mesh plan's.
	return len(s.privateTopics) > 0 && len(below.dependencies) > 0 && s.below.dependsOn(below, s.privateTopics)
}

// dependsOn reports whether a node of the plan depends on one of the topics, directly or by a derived answer.
func (s *scopePlan) dependsOn(n *node, topics mesh.Topics) bool {
	for _, d := range n.dependencies {
		if s.graph.view.DependsOn(d.topic, topics.Has) {
			return true
		}
	}
	return false
}

// dropUnusedAnswers drops the derived answers that no node of the plan and those below depends on. The caller holds
// the lock.
func (s *scopePlan) dropUnusedAnswers() {
	s.graph.dropUnusedAnswers()
	if s.below != nil {
		s.changeBelow((*scopePlan).dropUnusedAnswers)
	}
}

// close gives up the plan's subscriptions in the plan below and its credentials. No update is applied to it any more.
func (s *scopePlan) close() {
	defer s.lock()()
	s.closed = true
	s.graph.close()
	if s.below == nil {
		return
	}
	s.changeBelow(func(below *scopePlan) {
		for url, p := range s.graph.types {
			for name := range p.resources {
				below.unsubscribe(url, name, s, false)
			}
		}
	})
}
