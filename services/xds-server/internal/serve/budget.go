package serve

import (
	"slices"
	"sync"
)

// budget bounds the bytes that were handed to gRPC and that the network has not taken yet. Who is refused waits in line, with its changes
// where they were; those who have no configuration yet stand before those who have an old one.
//
// An account may have as much under way as is left for the others: alone it has half of the limit, beside one that has its half too a third,
// and so on. Something is left however many streams of some accounts do not read. An account with nothing under way goes before one with
// something.
type budget struct {
	limit int64

	mu sync.Mutex
	// used may exceed limit by one response, so that one larger than the limit can go out at all.
	used int64
	// lines are the shares with streams in line, in the order of their turns.
	lines []*share
	// starving is how many shares have nothing under way and streams in line, by urgency.
	starving [urgencies]int
	// round counts when there was more to take than before; blocked is the last in which there was not enough for a share with nothing.
	round, blocked uint64
	// serving is true while a goroutine serves the lines.
	serving bool
}

// Urgencies of what a stream waits for: its first configuration, or a newer one.
const (
	first = iota
	later
	urgencies
)

func urgencyOf(answered bool) int {
	if answered {
		return later
	}
	return first
}

// share is what one account has of the budget, whose mutex guards it.
type share struct {
	used   int64
	queues [urgencies]queue
	// starving is true where the share counts among the budget's.
	starving [urgencies]bool
	// lined is true while it is one of the budget's lines.
	lined bool
	// blocked is the last round in which it asked for more than it may have.
	blocked uint64
}

func (a *share) waits() bool { return len(a.queues[first].waiting)+len(a.queues[later].waiting) > 0 }

// queue is a line of streams, each in it once.
type queue struct {
	line    []*stream
	waiting map[*stream]struct{}
}

// push puts a stream at the end of the line, or back at its head.
func (q *queue) push(s *stream, back bool) {
	if _, ok := q.waiting[s]; ok {
		return
	}
	if q.waiting == nil {
		q.waiting = map[*stream]struct{}{}
	}
	q.waiting[s] = struct{}{}
	if back {
		q.line = slices.Insert(q.line, 0, s)
	} else {
		q.line = append(q.line, s)
	}
}

func (q *queue) pop() *stream {
	for len(q.line) > 0 {
		s := q.line[0]
		q.line[0] = nil
		q.line = q.line[1:]
		if _, ok := q.waiting[s]; ok {
			delete(q.waiting, s)
			return s
		}
	}
	q.line = nil
	return nil
}

func (q *queue) drop(s *stream) {
	if delete(q.waiting, s); len(q.waiting) == 0 {
		q.line = nil
	}
}

// take asks for size bytes. Refused, the stream is in line, and its flush is called when its turn has come. served says that it is its turn.
func (b *budget) take(s *stream, size, urgency int, served bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &s.account.unsent
	if b.fits(a, int64(size)) && !b.yields(a, urgency, served) {
		b.used += int64(size)
		a.used += int64(size)
		if served && a.lined { // the others' turn
			i := slices.Index(b.lines, a)
			b.lines = append(slices.Delete(b.lines, i, i+1), a)
		}
		b.note(a, false)
		return true
	}
	a.queues[urgency].push(s, served)
	b.note(a, served)
	switch {
	case served && a.used == 0:
		b.blocked = b.round
	case served:
		a.blocked = b.round
	}
	return false
}

// fits reports whether an account may have so many bytes more under way.
func (b *budget) fits(a *share, size int64) bool {
	if a.used == 0 {
		return b.used == 0 || b.used+size <= b.limit
	}
	return a.used+size <= b.limit-b.used
}

// yields reports whether somebody in line goes before a stream of the account.
func (b *budget) yields(a *share, urgency int, served bool) bool {
	for u := range urgency + 1 {
		if !served && len(a.queues[u].waiting) > 0 || b.starving[u] > 0 && (a.used > 0 || !served) {
			return true
		}
	}
	return false
}

// note keeps what the budget knows of a share in line with it. A share that comes back goes before the others.
func (b *budget) note(a *share, back bool) {
	for u := range urgencies {
		if starving := a.used == 0 && len(a.queues[u].waiting) > 0; starving != a.starving[u] {
			a.starving[u] = starving
			if starving {
				b.starving[u]++
			} else {
				b.starving[u]--
			}
		}
	}
	switch waits := a.waits(); {
	case waits == a.lined:
	case !waits:
		i := slices.Index(b.lines, a)
		b.lines = slices.Delete(b.lines, i, i+1)
	case back:
		b.lines = slices.Insert(b.lines, 0, a)
	default:
		b.lines = append(b.lines, a)
	}
	a.lined = a.waits()
}

// give returns bytes of an account and serves who waits for them.
func (b *budget) give(a *share, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(size)
	a.used -= int64(size)
	b.note(a, false)
	b.serve()
}

// leave takes a stream out of the line.
func (b *budget) leave(s *stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &s.account.unsent
	if !a.lined {
		return
	}
	for u := range urgencies {
		a.queues[u].drop(s)
	}
	b.note(a, false)
	b.serve()
}

// contended reports whether somebody waits who would go on if the account had less under way.
func (b *budget) contended(a *share) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.lined || b.starving[first]+b.starving[later] > 0
}

// serve starts to serve the lines, in a goroutine of its own: bytes are given back from within the transport. The caller holds b.mu.
func (b *budget) serve() {
	b.round++
	if b.serving || b.used >= b.limit || len(b.lines) == 0 {
		return
	}
	b.serving = true
	go func() {
		for s := b.next(); s != nil; s = b.next() {
			s.resume()
		}
	}()
}

// next takes the next stream out of a line while there are bytes.
func (b *budget) next() *stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	for u := range urgencies {
		for _, a := range b.lines {
			if b.used >= b.limit || b.blocked == b.round {
				break
			}
			if a.blocked == b.round || b.starving[u] > 0 && !a.starving[u] {
				continue
			}
			if s := a.queues[u].pop(); s != nil {
				b.note(a, false)
				return s
			}
		}
	}
	b.serving = false
	return nil
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
