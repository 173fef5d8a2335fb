package serve

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
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

// Refusal is a stream that was refused because its identity uses too much (quota.go).
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

// refusals keeps the refusals of the last refusalLife.
type refusals struct {
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics
	notify  func()

	mu sync.Mutex
	// kept is sorted by the time of the last occurrence.
	kept []Refusal
	// changed is true if some refusals were not reported yet; reportedAt is when the reporter was last notified.
	changed    bool
	reportedAt time.Time
}

// add counts a refusal.
func (r *refusals) add(refusal Refusal) {
	r.metrics.refused.WithLabelValues(string(refusal.Budget)).Inc()
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
func (r *refusals) makeRoom(identity string) {
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

func (r *refusals) expire(now time.Time) {
	r.kept = slices.DeleteFunc(r.kept, func(k Refusal) bool { return now.Sub(k.At) >= refusalLife })
}

// list returns the current refusals.
func (r *refusals) list() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.clock.Now())
	return slices.Clone(r.kept)
}

// Refusals lists the streams that were refused in the last ten minutes because their identity uses too much, sorted by
// identity and node id.
func (s *Server) Refusals() []*configv1.Refusal {
	var out []*configv1.Refusal
	for _, k := range s.refusals.list() {
		out = append(out, &configv1.Refusal{
			NodeId: k.NodeID, Identity: k.Identity, Budget: string(k.Budget), Reason: k.Reason, Count: k.Count, At: timestamppb.New(k.At),
			XdsServer: s.instance,
		})
	}
	slices.SortFunc(out, func(a, b *configv1.Refusal) int {
		return cmp.Or(cmp.Compare(a.GetIdentity(), b.GetIdentity()), cmp.Compare(a.GetNodeId(), b.GetNodeId()),
			cmp.Compare(a.GetBudget(), b.GetBudget()))
	})
	return out
}

// NewRefusals returns what Refusals does if there is a new one since the last call, or if all is true; nil otherwise.
// Only the reporter calls it.
func (s *Server) NewRefusals(all bool) *configv1.Refusals {
	r := &s.refusals
	r.mu.Lock()
	fresh := r.changed
	r.changed = false
	r.mu.Unlock()
	if !fresh && !all {
		return nil
	}
	found := s.Refusals()
	if !fresh && len(found) == 0 {
		return nil
	}
	return &configv1.Refusals{Refusals: found}
}
