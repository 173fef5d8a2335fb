package plan

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// tier is one of up to three plans that a class's is made of: what everybody shares, upon it what differs for the namespace, upon that
// what differs for the workload. A tier holds of its own only what a build or a list shows to be different: because it read what the
// tier below does not have, or a question whose answer is private to the namespace.
type tier struct {
	below *tier // nil for the lowest
	// scope is that of the results which hold in the tier and in those above it.
	scope input.Scope
	hash  class.Hash
	// users are the tiers directly above; the engine's mutex guards it.
	users int

	mu       sync.Mutex
	sequence uint64 // of the engine's states
	own      *layer
	// private are the topics whose answer below is not this tier's.
	private mesh.Topics
	// special are the actions whose results do not hold in tiers above.
	special map[*action]struct{}
	items   map[string]*btree.Map[string, Item]
	tallies map[string]*tally
	dirty   map[string]struct{}
	types   map[string]*TypeSnapshot
	// unasked are resources that nobody asks for by name any more, and since when.
	unasked map[*action]time.Time
	done    done
}

// done is what the last step did to a tier.
type done struct {
	// stepping is true during a step.
	stepping bool
	// ran are the actions, of this tier and those below, that were done again, were added or have gone.
	ran []*action
	// changed are the items that may be others than before the step.
	changed Changes
}

// tally is the version and size of a wildcard set.
type tally struct {
	sum   sum
	count int
}

// replace takes one item out of a tally and puts another in.
func (t *tally) replace(old, next Item) {
	if old.Wildcard && old.Blob != nil {
		t.sum.remove(old.Blob)
		t.count--
	}
	if next.Wildcard && next.Blob != nil {
		t.sum.add(next.Blob)
		t.count++
	}
}

func newTier(e *Engine, key *class.Key, scope input.Scope, below *tier, state *mesh.Snapshot, sequence uint64) *tier {
	t := &tier{
		below: below, scope: scope, hash: key.Hash(), sequence: sequence, own: newLayer(e, key, state, key.Hash().String()),
		private: mesh.Topics{}, special: map[*action]struct{}{}, items: map[string]*btree.Map[string, Item]{},
		tallies: map[string]*tally{}, dirty: map[string]struct{}{}, types: map[string]*TypeSnapshot{}, unasked: map[*action]time.Time{},
		done: done{changed: Changes{}},
	}
	if t.overEverybody() {
		state.Private(key.Namespace, t.private.Add)
	}
	return t
}

// overEverybody reports whether the tier is a namespace's on what everybody shares.
func (t *tier) overEverybody() bool { return t.below != nil && t.below.scope == input.MeshScope }

// lock takes the mutexes of the tier and of all below it; the result gives them back.
func (t *tier) lock() (unlock func()) {
	for at := t; at != nil; at = at.below {
		at.mu.Lock()
	}
	return func() {
		for at := t; at != nil; at = at.below {
			at.mu.Unlock()
		}
	}
}

// plan returns the plan of a type; nil if nobody makes it.
func (t *tier) plan(url string) *typePlan {
	p := t.own.plan(url)
	if p != nil && t.items[url] == nil {
		t.items[url], t.tallies[url] = btree.NewMap[string, Item](0), &tally{}
	}
	return p
}

// snapshot returns what the tier has of a type now.
func (t *tier) snapshot(url string) *TypeSnapshot {
	if t.plan(url) == nil {
		return nothing
	}
	below := nothing
	if t.below != nil {
		below = t.below.snapshot(url)
	}
	held := t.types[url]
	_, dirty := t.dirty[url]
	switch {
	case held == nil || dirty:
		held = &TypeSnapshot{own: t.items[url].Copy(), base: below}
		delete(t.dirty, url)
	case held.base != below:
		held = &TypeSnapshot{own: held.own, base: below}
	default:
		return held
	}
	if t.below == nil {
		held.whole, held.sum, held.count = true, t.tallies[url].sum, t.tallies[url].count
	}
	t.types[url] = held
	return held
}

// found is what a tier and those below it have of a resource.
type found struct {
	// action that built it, nil if none has.
	action *action
	// listed is how many lists that count name it.
	listed int
}

func (f found) item() Item {
	if f.action == nil {
		return Item{}
	}
	return f.action.item(f.listed > 0)
}

// look finds a resource in the tier and below. t may be nil.
func (t *tier) look(url, name string) found {
	if t == nil {
		return found{}
	}
	f := t.below.look(url, name)
	p := t.own.types[url]
	if p == nil {
		return f
	}
	if a, ok := p.resources[name]; ok {
		f.listed += a.listed - a.hidden
		if a.built {
			f.action = a
		}
	}
	return f
}

// lookList finds the list of a host in the tier and below. t may be nil.
func (t *tier) lookList(url, host string) *action {
	if t == nil {
		return nil
	}
	if p := t.own.types[url]; p != nil {
		if a, ok := p.lists[host]; ok && a.built {
			return a
		}
	}
	return t.below.lookList(url, host)
}

// differs reports whether what an action of a tier below has read may be otherwise in this tier.
func (t *tier) differs(a *action) bool {
	if a.scope >= t.scope && a.scope > t.below.scope {
		return true
	}
	if len(t.private) == 0 || len(a.inputs) == 0 {
		return false
	}
	// Only what everybody shares lies below a tier that has something private.
	for _, node := range a.inputs {
		if t.below.own.view.Meets(node.topic, t.private.Has) {
			return true
		}
	}
	return false
}

// list makes sure that the wildcard set of a type is there. The caller holds the locks.
func (t *tier) list(url string) {
	p := t.plan(url)
	if p == nil || p.listing {
		return
	}
	p.listing = true
	if t.below == nil {
		t.considerList(p, "")
		t.own.view.State().Hosts(contract.MeshGateway, func(host string) { t.considerList(p, host) })
		return
	}
	t.below.list(url) // before what is listed here: it may be there already
	t.considerList(p, "")
	others := t.affected(t.private)
	for a := range t.below.special {
		others = append(others, a)
	}
	t.considerAll(slices.DeleteFunc(others, func(a *action) bool { return a.plan.url != url }))
}

// affected lists the actions below that depend on topics.
func (t *tier) affected(topics mesh.Topics) []*action {
	if len(topics) == 0 {
		return nil
	}
	all := maps.Clone(topics)
	t.below.own.view.Derived(topics.Has, all.Add)
	return t.below.own.dependants(all)
}

// considerAll considers actions below, the lists first.
func (t *tier) considerAll(actions []*action) {
	for _, lists := range []bool{true, false} {
		for _, a := range actions {
			p := t.own.types[a.plan.url]
			switch {
			case p == nil || a.list != lists:
			case !lists:
				t.consider(p, a.name)
			case p.listing && a.name != "":
				t.considerList(p, a.name)
			}
		}
	}
}

// considerList decides whether a host's list is the tier's own, and brings it and what it names up to date.
func (t *tier) considerList(p *typePlan, host string) {
	var below *action
	if t.below != nil && host != "" {
		below = t.below.lookList(p.url, host)
	}
	a := p.lists[host]
	var needed bool
	switch {
	case host == "":
		needed = t.scope == input.WorkloadScope // what belongs to no host is every class's own
	case t.below == nil:
		needed = true
	default:
		needed = below != nil && t.differs(below)
	}
	if a == nil && !needed {
		return
	}
	if a == nil {
		a = &action{plan: p, list: true, name: host}
		p.lists[host] = a
	}
	touched := a.covers
	for _, name := range a.covers {
		p.resource(name).hidden--
	}
	a.covers = nil
	if needed && (!a.built || a.stale) {
		before := t.own.runList(a)
		t.ran(a)
		for _, name := range a.names {
			p.resource(name).listed++
		}
		for _, name := range before {
			p.resource(name).listed--
		}
		touched = slices.Concat(touched, a.names, before)
	}
	if needed && below != nil {
		a.covers = below.names
		for _, name := range a.covers {
			p.resource(name).hidden++
		}
		touched = slices.Concat(touched, a.covers)
	}
	if !needed || below == nil && t.own.gone(a) {
		for _, name := range a.names {
			p.resource(name).listed--
		}
		touched = slices.Concat(touched, a.names)
		t.own.unbuild(a)
		t.ran(a)
		delete(p.lists, host)
	}
	for _, name := range touched {
		t.consider(p, name)
		if p.resources[name] != nil {
			t.note(p.resources[name])
		}
	}
}

// consider brings a resource up to date.
func (t *tier) consider(p *typePlan, name string) {
	a, ok := p.resources[name]
	if !ok {
		if t.below == nil {
			return
		}
		if f := t.below.look(p.url, name); f.listed == 0 || f.action == nil || !t.differs(f.action) {
			return
		}
		a = p.resource(name)
	}
	t.settle(a)
}

// ask makes sure that a resource is there for somebody who asks for it by name.
func (t *tier) ask(url, name string, who any) {
	p := t.plan(url)
	a, ok := p.resources[name]
	if !ok {
		if f := t.below.look(url, name); p.listing && f.listed > 0 && f.action != nil {
			return // as below, and kept while it is listed: list and consider see to those that differ
		}
		a = p.resource(name)
	}
	if t.below != nil && len(a.askers) == 0 && a.listed == 0 {
		t.below.ask(url, name, t)
	}
	a.ask(who)
	delete(t.unasked, a)
	t.settle(a)
}

// unask is the opposite of ask; lingering keeps the resource for a while.
func (t *tier) unask(url, name string, who any, lingering bool) {
	p := t.own.types[url]
	if p == nil {
		return
	}
	a, ok := p.resources[name]
	if !ok {
		return
	}
	if _, asked := a.askers[who]; !asked {
		return
	}
	if delete(a.askers, who); len(a.askers) > 0 {
		return
	}
	if lingering {
		t.unasked[a] = t.own.engine.clock.Now()
		return
	}
	t.settle(a)
}

// settle decides whether a resource is the tier's own, builds it if it is, and keeps the tier's item of it.
func (t *tier) settle(a *action) {
	p := a.plan
	var below found
	if t.below != nil {
		below = t.below.look(p.url, a.name)
	}
	wildcard := a.listed+below.listed > a.hidden
	_, lingering := t.unasked[a]
	wanted := wildcard || len(a.askers) > 0 || lingering
	same := below.action != nil && !t.differs(below.action)
	switch {
	case wanted && !same:
		if !a.built {
			// Should the build fail, what the tier had until now stays.
			if held := t.types[p.url]; held != nil {
				item, _ := held.Get(a.name)
				a.blob = item.Blob
			}
		}
		if !a.built || a.stale {
			t.own.runResource(a)
			t.ran(a)
		}
	case a.built:
		t.own.unbuild(a)
		t.ran(a)
	}
	var next Item
	switch {
	case wanted && same:
		next = below.action.item(wildcard)
	case wanted:
		next = a.item(wildcard)
	}
	items := t.items[p.url]
	old, held := items.Get(a.name)
	// What is not wanted is nobody's business unless it is listed below: an item that hid it could outlive its record.
	inherited := next == below.item() && (below.action != nil || !wanted) || !wanted && !below.item().Wildcard
	switch {
	case inherited && held:
		items.Delete(a.name)
	case !inherited && (!held || old != next):
		items.Set(a.name, next)
	}
	// Otherwise the tier's item is the one it was, or the one below, whose changes inherit takes over.
	if held == inherited || held && old != next {
		t.dirty[p.url] = struct{}{}
		t.changed(p.url, a.name)
	}
	if t.below == nil {
		t.tallies[p.url].replace(old, next)
	}
	if !wanted {
		if t.below != nil && !lingering {
			t.below.unask(p.url, a.name, t, false)
		}
		if a.hidden == 0 {
			delete(p.resources, a.name)
			t.note(a)
		}
	} else if same && a.listed == 0 && a.hidden == 0 && len(a.askers) == 0 && !lingering {
		delete(p.resources, a.name)
	}
}

// ran notes that an action was done or undone.
func (t *tier) ran(a *action) {
	if a.built && a.scope > t.scope {
		t.special[a] = struct{}{}
	} else {
		delete(t.special, a)
	}
	t.note(a)
}

// note tells the tiers above that a step has to do with an action.
func (t *tier) note(a *action) {
	if t.done.stepping {
		t.done.ran = append(t.done.ran, a)
	}
}

// changed notes that a step may have changed an item.
func (t *tier) changed(url, name string) {
	if t.done.stepping {
		t.done.changed.add(url, name)
	}
}

// close gives back what the tier holds in those below and outside.
func (t *tier) close() {
	defer t.lock()()
	t.own.close()
	if t.below == nil {
		return
	}
	for url, p := range t.own.types {
		for name := range p.resources {
			t.below.unask(url, name, t, false)
		}
	}
}
