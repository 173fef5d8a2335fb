package webhook

import (
	"bytes"
	"context"
	"sync"
)

// turns bounds what reviews cost while they are decoded and answered: their memory, and how many there are at once. Who
// must wait is served after callers that have fewer turns, and after those that had theirs longer ago, so that many
// reviews of one caller do not hold another's up. A review that costs more than half of the memory is large: one large
// review runs at a time, and leaves the other half to the others.
type turns struct {
	memory int64
	atOnce int

	mu      sync.Mutex
	free    int64
	running int
	large   bool
	waiting []*turn
	// callers are those that run or wait.
	callers map[string]*caller
	served  uint64
}

// caller counts the turns of an address.
type caller struct {
	running, waiting int
	// last is the number of its newest turn.
	last uint64
}

// turn is a review's.
type turn struct {
	of     *turns
	caller string
	cost   int64
	large  bool
	given  chan struct{}
}

func newTurns(memory int64, atOnce int) *turns {
	return &turns{memory: memory, atOnce: atOnce, free: memory, callers: map[string]*caller{}}
}

// take waits for a turn until ctx ends; then it returns nil.
func (t *turns) take(ctx context.Context, from string, cost int64) *turn {
	w := &turn{of: t, caller: from, cost: min(cost, t.memory/2), large: cost > t.memory/2, given: make(chan struct{})}
	t.mu.Lock()
	c := t.callers[from]
	if c == nil {
		c = &caller{}
		t.callers[from] = c
	}
	c.waiting++
	t.waiting = append(t.waiting, w)
	t.give()
	t.mu.Unlock()
	select {
	case <-w.given:
		return w
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.given: // it came meanwhile
		return w
	default:
	}
	for i, o := range t.waiting {
		if o == w {
			t.remove(i)
			break
		}
	}
	t.leave(from)
	return nil
}

// give gives as many turns as there are. It is called with mu held.
func (t *turns) give() {
	for t.running < t.atOnce {
		next := -1
		for i, w := range t.waiting {
			if (!w.large || !t.large) && (next < 0 || t.before(w, t.waiting[next])) {
				next = i
			}
		}
		// Nobody overtakes one that only lacks memory: what small reviews give back would go to small ones for ever.
		if next < 0 || t.waiting[next].cost > t.free {
			return
		}
		w := t.waiting[next]
		t.remove(next)
		t.served++
		c := t.callers[w.caller]
		c.running++
		c.last = t.served
		t.running++
		t.free -= w.cost
		t.large = t.large || w.large
		close(w.given)
	}
}

// before reports whether one waiting review is served before another, which came earlier.
func (t *turns) before(a, b *turn) bool {
	x, y := t.callers[a.caller], t.callers[b.caller]
	return x.running < y.running || x.running == y.running && x.last < y.last
}

// remove takes a review from those that wait. It is called with mu held.
func (t *turns) remove(i int) {
	t.callers[t.waiting[i].caller].waiting--
	t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
}

// leave forgets a caller that neither runs nor waits. It is called with mu held.
func (t *turns) leave(from string) {
	if c := t.callers[from]; c.running == 0 && c.waiting == 0 {
		delete(t.callers, from)
	}
}

// release gives the turn back.
func (w *turn) release() {
	t := w.of
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	t.free += w.cost
	if w.large {
		t.large = false
	}
	t.callers[w.caller].running--
	t.leave(w.caller)
	t.give()
}

// inUse is the memory of the reviews that run.
func (t *turns) inUse() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.memory - t.free
}

// valueMarks are the bytes of which a JSON text has about one for each value; those in texts are counted, too.
var valueMarks = [...]byte{'[', '{', ',', ':'}

// countValues bounds from above how many values a JSON text has, as package yamltext does for documents.
func countValues(text []byte) (n int) {
	for _, mark := range valueMarks {
		n += bytes.Count(text, []byte{mark})
	}
	return n
}
