package issuance

import (
	"maps"
	"sync"
	"time"

	"fairlead.dev/services/ca/internal/rejection"
)

// Counts are the decisions since the ca started; /debug/issued shows them as JSON.
type Counts struct {
	// Issued by how the caller was authenticated.
	Issued map[string]uint64 `json:"issued"`
	// Refused by reason.
	Refused map[rejection.Reason]uint64 `json:"refused"`
	// LastIssued is absent when nothing was issued.
	LastIssued *time.Time `json:"last_issued,omitempty"`
}

// tally holds Counts, because a Prometheus counter cannot be read back. It is safe for concurrent use.
type tally struct {
	mu    sync.Mutex
	count Counts
}

func newTally() *tally {
	return &tally{count: Counts{Issued: map[string]uint64{}, Refused: map[rejection.Reason]uint64{}}}
}

func (t *tally) issued(method string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Issued[method]++
	t.count.LastIssued = &at
}

func (t *tally) refused(reason rejection.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Refused[reason]++
}

func (t *tally) counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Counts{Issued: maps.Clone(t.count.Issued), Refused: maps.Clone(t.count.Refused), LastIssued: t.count.LastIssued}
}
