package plan

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// absences are the names that watchers of one class ask for and that the class has no resource for. Such a name holds
// no entry of a plan: whoever may ask for names may make them up. What is kept is who asks, and which topics may bring
// the resource into being: 8 bytes of hash for each topic that no other absent name waits for, and 12 bytes for each
// topic of each name. The class's tier guards it.
type absences struct {
	// slots by type URL and name.
	slots map[string]map[string]int32
	names []absentName
	free  []int32
	// heads are the first links of the topics, by hash: two topics of one hash cost a build too many, nothing else.
	heads map[uint64]int32
	links []absentLink
	// stale counts the links of names that have gone.
	stale int
	// looked counts the names that were built in vain since the tiers last forgot what such builds derive.
	looked int
}

// absentName is a slot; url is "" while it is free.
type absentName struct {
	url, name string
	// asker is the one who asks, more are those beside it.
	asker any
	more  map[any]struct{}
	// use tells the names apart that have had the slot.
	use   int32
	links int32
}

// absentLink says that the name which has a slot in one use waits for a topic; next is the topic's next link, -1 for
// none.
type absentLink struct{ slot, use, next int32 }

const (
	// manyStale is how many links of names that have gone are kept at least.
	manyStale = 1 << 10
	// forgetEvery is after how many builds in vain the tiers forget the answers that were derived for them.
	forgetEvery = 1 << 9
)

// join counts an asker of an absent name; false if the name is not known to be absent.
func (a *absences) join(url, name string, who any) bool {
	slot, ok := a.slots[url][name]
	if !ok {
		return false
	}
	n := &a.names[slot]
	switch {
	case n.asker == who:
	case n.more == nil:
		n.more = map[any]struct{}{who: {}}
	default:
		n.more[who] = struct{}{}
	}
	return true
}

// put keeps a name for those who ask for it.
func (a *absences) put(url, name string, askers []any, topics mesh.Topics) {
	if a.slots == nil {
		a.slots, a.heads = map[string]map[string]int32{}, map[uint64]int32{}
	}
	if a.slots[url] == nil {
		a.slots[url] = map[string]int32{}
	}
	if len(a.free) == 0 {
		a.names = append(a.names, absentName{})
		a.free = append(a.free, int32(len(a.names)-1)) //nolint:gosec // far fewer names fit the budgets
	}
	slot := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	a.slots[url][name] = slot
	n := &a.names[slot]
	n.url, n.name, n.asker, n.links = url, name, askers[0], int32(len(topics)) //nolint:gosec // a handful
	for _, who := range askers[1:] {
		a.join(url, name, who)
	}
	for topic := range topics {
		a.link(maphash.Comparable(seed, topic), slot, n.use)
	}
}

func (a *absences) link(hash uint64, slot, use int32) {
	next, ok := a.heads[hash]
	if !ok {
		next = -1
	}
	a.links = append(a.links, absentLink{slot: slot, use: use, next: next})
	a.heads[hash] = int32(len(a.links) - 1) //nolint:gosec // as above
}

// leave takes an asker off a name, which is forgotten with its last one.
func (a *absences) leave(url, name string, who any) {
	slot, ok := a.slots[url][name]
	if !ok {
		return
	}
	n := &a.names[slot]
	if n.asker != who {
		delete(n.more, who)
		return
	}
	for other := range n.more {
		n.asker = other
		delete(n.more, other)
		return
	}
	a.drop(slot)
}

// drop frees a slot.
func (a *absences) drop(slot int32) {
	n := &a.names[slot]
	delete(a.slots[n.url], n.name)
	a.stale += int(n.links)
	*n = absentName{use: n.use + 1}
	a.free = append(a.free, slot)
	switch live := len(a.links) - a.stale; {
	case len(a.free) == len(a.names):
		*a = absences{looked: a.looked}
	case a.stale > max(manyStale, live):
		a.relink()
	}
}

// relink leaves out the links, slots and map entries of names that have gone.
func (a *absences) relink() {
	was, moved := *a, map[int32]int32{}
	*a = absences{looked: was.looked, slots: map[string]map[string]int32{}, heads: map[uint64]int32{}}
	for slot := range was.names {
		n := was.names[slot]
		if n.url == "" {
			continue
		}
		if a.slots[n.url] == nil {
			a.slots[n.url] = map[string]int32{}
		}
		to := int32(len(a.names)) //nolint:gosec // no more than there were
		a.slots[n.url][n.name], moved[int32(slot)] = to, to
		n.use = 0
		a.names = append(a.names, n)
	}
	a.links = make([]absentLink, 0, len(was.links)-was.stale)
	for hash, at := range was.heads {
		for ; at >= 0; at = was.links[at].next {
			if l := was.links[at]; was.names[l.slot].use == l.use && was.names[l.slot].url != "" {
				a.link(hash, moved[l.slot], 0)
			}
		}
	}
}

// take removes the names that one of the topics may bring into being, and returns them in order.
func (a *absences) take(sets ...mesh.Topics) []absentName {
	if len(a.heads) == 0 {
		return nil
	}
	found := map[int32]struct{}{}
	for _, topics := range sets {
		for topic := range topics {
			at, ok := a.heads[maphash.Comparable(seed, topic)]
			for ; ok && at >= 0; at = a.links[at].next {
				if l := a.links[at]; a.names[l.slot].use == l.use && a.names[l.slot].url != "" {
					found[l.slot] = struct{}{}
				}
			}
		}
	}
	taken := make([]absentName, 0, len(found))
	for slot := range found {
		taken = append(taken, a.names[slot])
	}
	for _, n := range taken {
		if slot, ok := a.slots[n.url][n.name]; ok { // drop may have moved it
			a.drop(slot)
		}
	}
	slices.SortFunc(taken, func(x, y absentName) int { return cmp.Or(cmp.Compare(x.url, y.url), cmp.Compare(x.name, y.name)) })
	return taken
}

// askers lists who asks.
func (n absentName) askers() []any {
	return append([]any{n.asker}, slices.Collect(maps.Keys(n.more))...)
}

// ask plans a name for those who ask for it, or keeps it as an absent one. The caller holds the tier's locks.
func (c *Class) ask(url, name string, askers ...any) {
	clean := c.tier.clean(url)
	for _, who := range askers {
		c.tier.ask(url, name, who)
	}
	topics, absent := c.tier.absent(url, name, len(askers))
	if !absent {
		return
	}
	for _, who := range askers {
		c.tier.unask(url, name, who, false)
	}
	for _, t := range clean {
		delete(t.dirty, url) // it holds what it held
	}
	c.absent.put(url, name, askers, topics)
	if c.absent.looked++; c.absent.looked >= forgetEvery {
		c.absent.looked = 0
		for t := c.tier; t != nil; t = t.below {
			t.own.forget()
		}
	}
}

// appear plans absent names that the step may have brought into being, and notes those that are others than before it.
// The caller holds the locks.
func (c *Class) appear(s *step, before *Snapshot) {
	taken := c.absent.take(s.change.Topics, s.change.Private[c.key.Namespace])
	for _, n := range taken {
		c.ask(n.url, n.name, n.askers()...)
	}
	if len(taken) == 0 {
		return
	}
	c.publish()
	now := c.Snapshot()
	noted := map[string]map[string]bool{}
	for _, n := range taken {
		if noted[n.url] == nil {
			noted[n.url] = map[string]bool{}
			for _, name := range c.undelivered[n.url] {
				noted[n.url][name] = true
			}
		}
		old, _ := before.Type(n.url).Get(n.name)
		item, _ := now.Type(n.url).Get(n.name)
		if old == item || noted[n.url][n.name] {
			continue
		}
		c.undelivered.add(n.url, n.name)
		if old.Blob == nil && item.Blob != nil {
			c.arrived.add(n.url, n.name)
		}
	}
}

// clean lists the tier and those below it whose snapshots of a type are up to date.
func (t *tier) clean(url string) (clean []*tier) {
	for ; t != nil; t = t.below {
		if _, dirty := t.dirty[url]; !dirty {
			clean = append(clean, t)
		}
	}
	return clean
}

// absent reports whether a name that only so many ask for stands for nothing, and which topics may change that. What
// failed, what has yet to come, and what depends on a credential, which is followed only while a plan has it, does not
// count as absent.
func (t *tier) absent(url, name string, askers int) (topics mesh.Topics, absent bool) {
	if a := t.own.plan(url).resources[name]; a == nil || len(a.askers) != askers {
		return nil, false
	}
	if f := t.look(url, name); f.action == nil || f.listed > 0 {
		return nil, false
	}
	topics = mesh.Topics{}
	for ; t != nil; t = t.below {
		p := t.own.types[url]
		if p == nil {
			continue
		}
		a := p.resources[name]
		if a == nil || !a.built {
			continue
		}
		if a.blob != nil || a.failure != nil || a.pending {
			return nil, false
		}
		for _, node := range a.inputs {
			t.own.view.Sources(node.topic, topics.Add)
		}
	}
	for topic := range topics {
		switch topic.Subject {
		case mesh.SubjectCredential:
			return nil, false
		case mesh.SubjectOwnNamespace: // it never changes
			delete(topics, topic)
		}
	}
	return topics, true
}
