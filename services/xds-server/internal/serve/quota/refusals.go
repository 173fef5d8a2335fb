package quota

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
)

const (
	// refusalLife is how long a refusal is shown after it last happened.
	refusalLife = 10 * time.Minute
	// maxRefusals bounds the refusals that are kept, maxOfIdentity those of one identity, which can invent node ids at
	// will.
	maxRefusals, maxOfIdentity = 256, 8
	// refusalGap is the least time between two notifications of the reporter about repeated refusals: clients can cause
	// them as often as they like.
	refusalGap = time.Second
)

// Refusal is a stream that was refused because its identity uses too much.
type Refusal struct {
	// NodeID of the proxy; "" if the stream had not sent its node.
	NodeID string
	// Identity is a SPIFFE ID, or "address <address>" on the plaintext port.
	Identity string
	Budget   Budget
	Reason   string
	// At is when it last happened, Count how often.
	At    time.Time
	Count uint64
}

// Refusals keeps the refusals of the last refusalLife. It is safe for concurrent use.
type Refusals struct {
	clock  clock.Clock
	log    *slog.Logger
	notify func()

	mu sync.Mutex
	// kept is sorted by the time of the last occurrence.
	kept []Refusal
	// changed is true if some refusals were not reported yet; reportedAt is when the reporter was last notified.
	changed    bool
	reportedAt time.Time
}

// NewRefusals makes an empty Refusals. It calls notify, which must not block, for new refusals and now and then for
// repeated ones.
func NewRefusals(c clock.Clock, log *slog.Logger, notify func()) *Refusals {
	return &Refusals{clock: c, log: log, notify: notify}
}

// Add counts a refusal.
func (r *Refusals) Add(refusal Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refusal.At, refusal.Count = r.clock.Now(), 1
	r.expire(refusal.At)
	same := func(k Refusal) bool {
		return k.NodeID == refusal.NodeID && k.Identity == refusal.Identity && k.Budget == refusal.Budget
	}
	if i := slices.IndexFunc(r.kept, same); i >= 0 {
		refusal.Count += r.kept[i].Count
		r.kept = slices.Delete(r.kept, i, i+1)
	} else {
		r.log.Warn("stream refused: its identity uses too much", "node", refusal.NodeID, "identity", refusal.Identity, "budget",
			string(refusal.Budget), "reason", refusal.Reason)
		r.makeRoom(refusal.Identity)
	}
	r.kept = append(r.kept, refusal)
	if r.changed = true; refusal.Count == 1 || refusal.At.Sub(r.reportedAt) >= refusalGap {
		r.reportedAt = refusal.At
		r.notify()
	}
}

// makeRoom deletes the oldest refusal if there are too many, of the identity or in all.
func (r *Refusals) makeRoom(identity string) {
	of := func(k Refusal) bool { return k.Identity == identity }
	n := 0
	for _, k := range r.kept {
		if of(k) {
			n++
		}
	}
	switch {
	case n >= maxOfIdentity:
		i := slices.IndexFunc(r.kept, of)
		r.kept = slices.Delete(r.kept, i, i+1)
	case len(r.kept) >= maxRefusals:
		r.kept = slices.Delete(r.kept, 0, 1)
	}
}

func (r *Refusals) expire(now time.Time) {
	r.kept = slices.DeleteFunc(r.kept, func(k Refusal) bool { return now.Sub(k.At) >= refusalLife })
}

// TakeChanged reports whether there is a refusal that was not there at the last call.
func (r *Refusals) TakeChanged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.changed = false }()
	return r.changed
}

// List returns the current refusals, the oldest first.
func (r *Refusals) List() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.clock.Now())
	return slices.Clone(r.kept)
}
