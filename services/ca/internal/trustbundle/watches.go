package trustbundle

import (
	"cmp"
	"slices"
	"sync"
)

// Subscription is what the ca knows of one open watch; the debug page shows it.
type Subscription struct {
	// Subscriber is the name in the watch's first message, empty until then.
	Subscriber string `json:"subscriber"`
	// Identity is the authenticated SPIFFE ID.
	Identity string `json:"identity"`
	// Acked is the newest generation acknowledged, 0 for none yet.
	Acked uint64 `json:"acked_generation"`
}

// Watches records the open watches of the trust bundle and the generation that each has acknowledged. It bounds their
// number and shares it between identities. Server fills it. It is safe for concurrent use.
type Watches struct {
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

// NewWatches makes an empty record of at most limit watches.
func NewWatches(limit int) *Watches {
	return &Watches{limit: limit, open: map[uint64]*watch{}, held: map[string]int{}}
}

// add records a new watch of an identity; the caller ends the watch when displaced is closed. At the limit, add
// displaces the newest watch of the identity that has most, provided that this identity keeps at least as many as the
// new watch's identity then has; otherwise add returns false. So one identity alone may open all watches, and every
// identity can get its share.
func (ws *Watches) add(identity string) (id uint64, displaced <-chan struct{}, ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.open) >= ws.limit && !ws.displaceFor(identity) {
		ws.rejected++
		return 0, nil, false
	}
	ws.last++
	w := &watch{Subscription: Subscription{Identity: identity}, displaced: make(chan struct{})}
	ws.open[ws.last] = w
	ws.held[identity]++
	return ws.last, w.displaced, true
}

// displaceFor displaces a watch in favour of an identity if the rule of add allows it. The caller holds mu.
func (ws *Watches) displaceFor(identity string) bool {
	most := ""
	for holder, n := range ws.held {
		// Of identities with the same number, the first by name, so that the result does not depend on map order.
		if n > ws.held[most] || n == ws.held[most] && holder < most {
			most = holder
		}
	}
	if ws.held[most] <= ws.held[identity]+1 {
		return false
	}
	newest := uint64(0)
	for id, w := range ws.open {
		if w.Identity == most {
			newest = max(newest, id)
		}
	}
	close(ws.open[newest].displaced)
	ws.displaced++
	ws.drop(newest)
	return true
}

// setSubscriber records the subscriber's name; Server calls it on the first message.
func (ws *Watches) setSubscriber(id uint64, subscriber string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.open[id]; w != nil {
		w.Subscriber = subscriber
	}
}

// ack records an acknowledged generation. One older than before, or of a watch that has ended, has no effect.
func (ws *Watches) ack(id, generation uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.open[id]; w != nil {
		w.Acked = max(w.Acked, generation)
	}
}

// remove forgets a watch; Server calls it when the watch ends.
func (ws *Watches) remove(id uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.drop(id)
}

// drop forgets a watch, if it is still recorded. The caller holds mu.
func (ws *Watches) drop(id uint64) {
	w := ws.open[id]
	if w == nil {
		return
	}
	delete(ws.open, id)
	if ws.held[w.Identity]--; ws.held[w.Identity] == 0 {
		delete(ws.held, w.Identity)
	}
}

// Open returns how many watches are open.
func (ws *Watches) Open() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.open)
}

// Rejected returns how many watches were displaced, and how many were rejected when they opened, since the start.
func (ws *Watches) Rejected() (displaced, rejected uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.displaced, ws.rejected
}

// Behind returns how many watches are open, and those that have not acknowledged the generation, sorted by identity and
// name.
func (ws *Watches) Behind(generation uint64) (open int, behind []Subscription) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.open {
		if w.Acked < generation {
			behind = append(behind, w.Subscription)
		}
	}
	slices.SortFunc(behind, func(x, y Subscription) int {
		return cmp.Or(cmp.Compare(x.Identity, y.Identity), cmp.Compare(x.Subscriber, y.Subscriber))
	})
	return len(ws.open), behind
}
