package trust

import (
	"cmp"
	"slices"
	"sync"
)

// Subscription is one open watch.
type Subscription struct {
	// Subscriber is the name that the process gives itself, empty until its first message.
	Subscriber string `json:"subscriber"`
	// Identity is the authenticated SPIFFE ID.
	Identity string `json:"identity"`
	// Acked is the newest generation that it has acknowledged, 0 for none yet.
	Acked uint64 `json:"acked_generation"`
}

// Acks records the open watches of the trust bundle and what each has acknowledged. It bounds the watches and shares
// them between identities. It is safe for concurrent use.
type Acks struct {
	limit int

	mu   sync.Mutex
	last uint64
	open map[uint64]*watch
	// held is how many watches each identity has open; identities without a watch have no entry.
	held                map[string]int
	displaced, rejected uint64
}

// watch is an open subscription.
type watch struct {
	Subscription
	// displaced is closed when the watch must end to make room for another identity's.
	displaced chan struct{}
}

// NewAcks makes an empty record for at most limit watches.
func NewAcks(limit int) *Acks {
	return &Acks{limit: limit, open: map[uint64]*watch{}, held: map[string]int{}}
}

// add records a new watch of an identity; the watch must end when displaced is closed. At the limit, add displaces the
// newest watch of the identity that has most, provided that this identity keeps at least as many as the new watch's
// identity then has; otherwise it returns false. So one identity alone may open all watches, and none can keep another
// from its share.
func (a *Acks) add(identity string) (id uint64, displaced <-chan struct{}, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) >= a.limit && !a.displaceFor(identity) {
		a.rejected++
		return 0, nil, false
	}
	a.last++
	w := &watch{Subscription: Subscription{Identity: identity}, displaced: make(chan struct{})}
	a.open[a.last] = w
	a.held[identity]++
	return a.last, w.displaced, true
}

// displaceFor displaces a watch in favour of this identity if the rule of add allows it. It is called with mu held.
func (a *Acks) displaceFor(identity string) bool {
	most := ""
	for holder, n := range a.held {
		// Of identities with the same number, the first by name: the result must not depend on map order.
		if n > a.held[most] || n == a.held[most] && holder < most {
			most = holder
		}
	}
	if a.held[most] <= a.held[identity]+1 {
		return false
	}
	newest := uint64(0)
	for id, w := range a.open {
		if w.Identity == most {
			newest = max(newest, id)
		}
	}
	close(a.open[newest].displaced)
	a.displaced++
	a.drop(newest)
	return true
}

// named records the subscriber's name; Server calls it on the first message.
func (a *Acks) named(id uint64, subscriber string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.open[id]; w != nil {
		w.Subscriber = subscriber
	}
}

// ack records an acknowledged generation; an older one than before has no effect.
func (a *Acks) ack(id, generation uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.open[id]; w != nil {
		w.Acked = max(w.Acked, generation)
	}
}

// remove is called when a watch ends.
func (a *Acks) remove(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(id)
}

// drop forgets a watch; it does nothing the second time. It is called with mu held.
func (a *Acks) drop(id uint64) {
	w := a.open[id]
	if w == nil {
		return
	}
	delete(a.open, id)
	if a.held[w.Identity]--; a.held[w.Identity] == 0 {
		delete(a.held, w.Identity)
	}
}

// Open returns how many watches are open.
func (a *Acks) Open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open)
}

// Refused returns how many watches were displaced, and how many were refused, since the start.
func (a *Acks) Refused() (displaced, rejected uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.displaced, a.rejected
}

// Behind returns how many watches are open, and those that have not acknowledged the generation, sorted by identity and
// name.
func (a *Acks) Behind(generation uint64) (open int, behind []Subscription) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.open {
		if w.Acked < generation {
			behind = append(behind, w.Subscription)
		}
	}
	slices.SortFunc(behind, func(x, y Subscription) int {
		return cmp.Or(cmp.Compare(x.Identity, y.Identity), cmp.Compare(x.Subscriber, y.Subscriber))
	})
	return len(a.open), behind
}
