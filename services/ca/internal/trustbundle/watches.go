package trustbundle

import (
	"cmp"
	"slices"
	"sync"

	"fairlead.dev/pkg/fairshare"
)

// Subscription is what the ca knows of one open watch; the debug page shows it.
type Subscription struct {
	// Subscriber is the name in the watch's first message, empty until then.
	Subscriber string `json:"subscriber"`
	// Identity is the authenticated SPIFFE ID.
	Identity string `json:"identity"`
	// Acked is the newest generation acknowledged, 0 for none yet; AckedEpoch is its epoch.
	Acked      uint64 `json:"acked_generation"`
	AckedEpoch uint64 `json:"acked_epoch,omitempty"`
}

// Watches records the open watches of the trust bundle and the generation that each has acknowledged. It bounds their
// number and shares it between identities: one alone may open all watches, and every identity can get its share. Server
// fills it. It is safe for concurrent use.
type Watches struct {
	places *fairshare.Pool

	mu                  sync.Mutex
	open                map[*watch]struct{}
	displaced, rejected uint64
}

// watch is an open subscription.
type watch struct {
	Subscription
	place *fairshare.Place
	// displaced is closed when the watch must end to make room for another identity's.
	displaced chan struct{}
}

func (s *Subscription) acked() point { return point{s.AckedEpoch, s.Acked} }

// NewWatches makes an empty record of at most limit watches.
func NewWatches(limit int) *Watches {
	return &Watches{places: fairshare.New(fairshare.Config{Places: limit, Policy: fairshare.Newest}), open: map[*watch]struct{}{}}
}

// add records a new watch of an identity; the caller ends the watch when displaced is closed. At the limit, add
// displaces the newest watch of the identity that has most, provided that this identity keeps at least as many as the
// new watch's identity then has; otherwise add returns false.
func (ws *Watches) add(identity string) (w *watch, ok bool) {
	w = &watch{Subscription: Subscription{Identity: identity}, displaced: make(chan struct{})}
	place, err := ws.places.Take(identity, 0, func() {
		close(w.displaced)
		ws.mu.Lock()
		defer ws.mu.Unlock()
		ws.displaced++
		delete(ws.open, w)
	})
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if err != nil {
		ws.rejected++
		return nil, false
	}
	w.place = place
	ws.open[w] = struct{}{}
	return w, true
}

// setSubscriber records the subscriber's name; Server calls it on the first message.
func (ws *Watches) setSubscriber(w *watch, subscriber string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.Subscriber = subscriber
}

// ack records an acknowledged generation. One older than before, or of a watch that has ended, has no effect.
func (ws *Watches) ack(w *watch, acked point) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if acked.compare(w.acked()) > 0 {
		w.AckedEpoch, w.Acked = acked.epoch, acked.generation
	}
}

// remove forgets a watch; Server calls it when the watch ends.
func (ws *Watches) remove(w *watch) {
	w.place.Release()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.open, w)
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

// Behind returns how many watches are open, and those that have not acknowledged the bundle, sorted by identity and
// name. Nobody is behind a bundle of nil.
func (ws *Watches) Behind(b *Bundle) (open int, behind []Subscription) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.open {
		if b != nil && w.acked().compare(b.point()) < 0 {
			behind = append(behind, w.Subscription)
		}
	}
	slices.SortFunc(behind, func(x, y Subscription) int {
		return cmp.Or(cmp.Compare(x.Identity, y.Identity), cmp.Compare(x.Subscriber, y.Subscriber))
	})
	return len(ws.open), behind
}
