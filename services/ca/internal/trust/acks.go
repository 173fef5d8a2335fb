package trust

import (
	"cmp"
	"slices"
	"sync"
)

// Subscription is one open watch.
type Subscription struct {
	// Subscriber is the name that the process gave itself.
	Subscriber string `json:"subscriber"`
	// Identity is the authenticated SPIFFE ID.
	Identity string `json:"identity"`
	// Acked is the generation that it verifies with, 0 for none yet.
	Acked uint64 `json:"acked_generation"`
}

// Acks knows every open watch and what it has acknowledged. It is safe for concurrent use.
type Acks struct {
	limit int

	mu   sync.Mutex
	last uint64
	open map[uint64]Subscription
}

// NewAcks makes an empty record that holds at most limit watches.
func NewAcks(limit int) *Acks {
	return &Acks{limit: limit, open: map[uint64]Subscription{}}
}

// add records a new watch, unless there are too many.
func (a *Acks) add(s Subscription) (id uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) >= a.limit {
		return 0, false
	}
	a.last++
	a.open[a.last] = s
	return a.last, true
}

func (a *Acks) ack(id, generation uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.open[id]
	s.Acked = max(s.Acked, generation)
	a.open[id] = s
}

func (a *Acks) remove(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, id)
}

// Behind returns how many watches are open and those that have not acknowledged the generation, sorted by identity and name.
func (a *Acks) Behind(generation uint64) (open int, behind []Subscription) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.open {
		if s.Acked < generation {
			behind = append(behind, s)
		}
	}
	slices.SortFunc(behind, func(x, y Subscription) int {
		return cmp.Or(cmp.Compare(x.Identity, y.Identity), cmp.Compare(x.Subscriber, y.Subscriber))
	})
	return len(a.open), behind
}
