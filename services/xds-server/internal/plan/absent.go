package plan

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// absentNames are the names that watchers of one class subscribe to and that the class has no resource for. Proxies may
// make up such names, so they have no node in a graph. What is kept of a name is who subscribes to it, and which topics
// may bring the resource into being: 8 bytes of hash for each topic that no other absent name waits for, and 12 bytes
// for each topic of each name.
type absentNames struct {
	// slots by type URL and name.
	slots map[string]map[string]int32
	names []absentName
	free  []int32
	// heads are the first links of the topics, by hash. Two topics with the same hash cost a needless build at most.
	heads map[uint64]int32
	links []absentLink
	// stale counts the links of names that were removed.
	stale int
	// builds counts the builds of absent names since dropUnusedAnswers was called last.
	builds int
}

// absentName is a slot; url is "" while the slot is free.
type absentName struct {
	url, name string
	// first is a subscriber, others are the subscribers beside it.
	first  any
	others map[any]struct{}
	// use is incremented when the slot is freed: links to an earlier use are stale.
	use   int32
	links int32
}

// absentLink says that the name which has a slot in one use waits for a topic. next is the topic's next link; -1 ends
// the chain.
type absentLink struct{ slot, use, next int32 }

const (
	// minStaleLinks is how many stale links there are at least before compact removes them.
	minStaleLinks = 1 << 10
	// maxAbsentBuilds is after how many builds of absent names the answers that were derived for them are dropped.
	maxAbsentBuilds = 1 << 9
)

func (a *absentNames) isEmpty() bool { return len(a.heads) == 0 }

// addSubscriber adds a subscriber to an absent name; false if the name is not known to be absent.
func (a *absentNames) addSubscriber(url, name string, who any) bool {
	slot, ok := a.slots[url][name]
	if !ok {
		return false
	}
	n := &a.names[slot]
	switch {
	case n.first == who:
	case n.others == nil:
		n.others = map[any]struct{}{who: {}}
	default:
		n.others[who] = struct{}{}
	}
	return true
}

// add adds a name with its subscribers and the topics that it waits for.
func (a *absentNames) add(url, name string, subscribers []any, topics mesh.Topics) {
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
	n.url, n.name, n.first, n.links = url, name, subscribers[0], int32(len(topics)) //nolint:gosec // a handful
	for _, who := range subscribers[1:] {
		a.addSubscriber(url, name, who)
	}
	for topic := range topics {
		a.link(maphash.Comparable(seed, topic), slot, n.use)
	}
}

func (a *absentNames) link(hash uint64, slot, use int32) {
	next, ok := a.heads[hash]
	if !ok {
		next = -1
	}
	a.links = append(a.links, absentLink{slot: slot, use: use, next: next})
	a.heads[hash] = int32(len(a.links) - 1) //nolint:gosec // as above
}

// removeSubscriber removes a subscriber of a name. The name is removed with its last subscriber.
func (a *absentNames) removeSubscriber(url, name string, who any) {
	slot, ok := a.slots[url][name]
	if !ok {
		return
	}
	n := &a.names[slot]
	if n.first != who {
		delete(n.others, who)
		return
	}
	for other := range n.others {
		n.first = other
		delete(n.others, other)
		return
	}
	a.remove(slot)
}

// remove frees the slot of a name.
func (a *absentNames) remove(slot int32) {
	n := &a.names[slot]
	delete(a.slots[n.url], n.name)
	a.stale += int(n.links)
	*n = absentName{use: n.use + 1}
	a.free = append(a.free, slot)
	switch live := len(a.links) - a.stale; {
	case len(a.free) == len(a.names):
		*a = absentNames{builds: a.builds}
	case a.stale > max(minStaleLinks, live):
		a.compact()
	}
}

// compact removes stale links, free slots and the map entries of names that were removed. Slots get new numbers.
func (a *absentNames) compact() {
	was, moved := *a, map[int32]int32{}
	*a = absentNames{builds: was.builds, slots: map[string]map[string]int32{}, heads: map[uint64]int32{}}
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
			if l := was.links[at]; was.isLive(l) {
				a.link(hash, moved[l.slot], 0)
			}
		}
	}
}

func (a *absentNames) isLive(l absentLink) bool {
	return a.names[l.slot].use == l.use && a.names[l.slot].url != ""
}

// take removes the names that wait for one of the topics and returns them, sorted by type and name.
func (a *absentNames) take(sets ...mesh.Topics) []absentName {
	if a.isEmpty() {
		return nil
	}
	found := map[int32]struct{}{}
	for _, topics := range sets {
		for topic := range topics {
			at, ok := a.heads[maphash.Comparable(seed, topic)]
			for ; ok && at >= 0; at = a.links[at].next {
				if l := a.links[at]; a.isLive(l) {
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
		if slot, ok := a.slots[n.url][n.name]; ok { // remove may have given it another slot
			a.remove(slot)
		}
	}
	slices.SortFunc(taken, func(x, y absentName) int { return cmp.Or(cmp.Compare(x.url, y.url), cmp.Compare(x.name, y.name)) })
	return taken
}

func (n absentName) subscribers() []any {
	return append([]any{n.first}, slices.Collect(maps.Keys(n.others))...)
}

// subscribe plans a name for its subscribers, or keeps it as an absent one. The caller holds the plan's lock.
func (c *Class) subscribe(url, name string, subscribers ...any) {
	for _, who := range subscribers {
		c.plan.subscribe(url, name, who)
	}
	topics, absent := c.plan.isAbsent(url, name, len(subscribers))
	if !absent {
		return
	}
	for _, who := range subscribers {
		c.plan.unsubscribe(url, name, who, false)
	}
	c.absent.add(url, name, subscribers, topics)
	c.engine.addWaiting(c)
	if c.absent.builds++; c.absent.builds >= maxAbsentBuilds {
		c.absent.builds = 0
		c.plan.dropUnusedAnswers()
	}
}

// planAppeared plans the absent names that the update may have brought into being, and adds those whose item differs
// from the one before the update to what the watchers have to be notified of. The caller holds the plan's lock.
func (c *Class) planAppeared(u *update, before *Snapshot) {
	taken := c.absent.take(u.change.Topics, u.change.Private[c.key.Namespace])
	for _, n := range taken {
		c.subscribe(n.url, n.name, n.subscribers()...)
	}
	if len(taken) == 0 {
		return
	}
	c.publish()
	now := c.Snapshot()
	known := map[string]map[string]bool{}
	for _, n := range taken {
		if known[n.url] == nil {
			known[n.url] = map[string]bool{}
			for _, name := range c.undelivered[n.url] {
				known[n.url][name] = true
			}
		}
		old, _ := before.Type(n.url).Get(n.name)
		item, _ := now.Type(n.url).Get(n.name)
		if old != item && !known[n.url][n.name] {
			c.addUndelivered(n.url, n.name, old, item)
		}
	}
}

// isAbsent reports whether a name has no resource and no subscribers but so many, and which topics may bring the
// resource into being. A resource that failed or is pending does not count as absent; neither does one that depends on
// a credential, which is followed only as long as a node depends on it.
func (s *scopePlan) isAbsent(url, name string, subscribers int) (topics mesh.Topics, absent bool) {
	if n := s.graph.typePlan(url).resources[name]; n == nil || len(n.subscribers) != subscribers {
		return nil, false
	}
	if r := s.lookup(url, name); r.node == nil || r.listed > 0 {
		return nil, false
	}
	topics = mesh.Topics{}
	for ; s != nil; s = s.below {
		p := s.graph.types[url]
		if p == nil {
			continue
		}
		n := p.resources[name]
		if n == nil || !n.built {
			continue
		}
		if n.blob != nil || n.failure != nil || n.pending {
			return nil, false
		}
		for _, d := range n.dependencies {
			s.graph.view.Sources(d.topic, topics.Add)
		}
	}
	for topic := range topics {
		switch topic.Subject {
		case mesh.SubjectCredential:
			return nil, false
		case mesh.SubjectOwnNamespace: // never changes
			delete(topics, topic)
		}
	}
	return topics, true
}
