package serve

import (
	"slices"
	"sync"
	"sync/atomic"
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
	queuedShares []*share
	// starving is how many shares have nothing under way and streams in line, by urgency.
	starving [urgencies]int
	// round counts when there was more to take than before; blocked is the last in which there was not enough for a share with nothing.
	round, blocked uint64
	// serving is true while a goroutine serves the lines.
	serving bool
}

// Urgencies of what a stream waits for: its first configuration, or a newer one.
const (
	initialConfig = iota
	updatedConfig
	urgencies
)

func urgencyOf(answered bool) int {
	if answered {
		return updatedConfig
	}
	return initialConfig
}

// share is what one account has of the budget, whose mutex guards it.
type share struct {
	used   int64
	queues [urgencies]queue
	// starving is true where the share counts among the budget's.
	starving [urgencies]bool
	// lined is true while it is one of the budget's lines.
	inQueue bool
	// blocked is the last round in which it asked for more than it may have.
	blocked uint64
}

func (sh *share) waits() bool {
	return len(sh.queues[initialConfig].waiting)+len(sh.queues[updatedConfig].waiting) > 0
}

// queue is a line of streams, each in it once.
type queue struct {
	line    []*stream
	waiting map[*stream]struct{}
}

// push puts a stream at the end of the line, or back at its head.
func (q *queue) push(st *stream, back bool) {
	if _, ok := q.waiting[st]; ok {
		return
	}
	if q.waiting == nil {
		q.waiting = map[*stream]struct{}{}
	}
	q.waiting[st] = struct{}{}
	if back {
		q.line = slices.Insert(q.line, 0, st)
	} else {
		q.line = append(q.line, st)
	}
}

func (q *queue) pop() *stream {
	for len(q.line) > 0 {
		st := q.line[0]
		q.line[0] = nil
		q.line = q.line[1:]
		if _, ok := q.waiting[st]; ok {
			delete(q.waiting, st)
			return st
		}
	}
	q.line = nil
	return nil
}

func (q *queue) drop(st *stream) {
	if delete(q.waiting, st); len(q.waiting) == 0 {
		q.line = nil
	}
}

// take asks for size bytes. Refused, the stream is in line, and its flush is called when its turn has come. served says that it is its turn.
func (b *budget) take(st *stream, size, urgency int, inTurn bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	sh := &st.account.unsent
	if b.fits(sh, int64(size)) && !b.yields(sh, urgency, inTurn) {
		b.used += int64(size)
		sh.used += int64(size)
		if inTurn && sh.inQueue { // the others' turn
			i := slices.Index(b.queuedShares, sh)
			b.queuedShares = append(slices.Delete(b.queuedShares, i, i+1), sh)
		}
		b.updateShare(sh, false)
		return true
	}
	sh.queues[urgency].push(st, inTurn)
	b.updateShare(sh, inTurn)
	switch {
	case inTurn && sh.used == 0:
		b.blocked = b.round
	case inTurn:
		sh.blocked = b.round
	}
	return false
}

// fits reports whether an account may have so many bytes more under way.
func (b *budget) fits(sh *share, size int64) bool {
	if sh.used == 0 {
		return b.used == 0 || b.used+size <= b.limit
	}
	return sh.used+size <= b.limit-b.used
}

// yields reports whether somebody in line goes before a stream of the account.
func (b *budget) yields(sh *share, urgency int, inTurn bool) bool {
	for u := range urgency + 1 {
		if !inTurn && len(sh.queues[u].waiting) > 0 || b.starving[u] > 0 && (sh.used > 0 || !inTurn) {
			return true
		}
	}
	return false
}

// note keeps what the budget knows of a share in line with it. A share that comes back goes before the others.
func (b *budget) updateShare(sh *share, back bool) {
	for u := range urgencies {
		if starving := sh.used == 0 && len(sh.queues[u].waiting) > 0; starving != sh.starving[u] {
			sh.starving[u] = starving
			if starving {
				b.starving[u]++
			} else {
				b.starving[u]--
			}
		}
	}
	switch waits := sh.waits(); {
	case waits == sh.inQueue:
	case !waits:
		i := slices.Index(b.queuedShares, sh)
		b.queuedShares = slices.Delete(b.queuedShares, i, i+1)
	case back:
		b.queuedShares = slices.Insert(b.queuedShares, 0, sh)
	default:
		b.queuedShares = append(b.queuedShares, sh)
	}
	sh.inQueue = sh.waits()
}

// give returns bytes of an account and serves who waits for them.
func (b *budget) giveBack(sh *share, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(size)
	sh.used -= int64(size)
	b.updateShare(sh, false)
	b.startServing()
}

// leave takes a stream out of the line.
func (b *budget) remove(st *stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sh := &st.account.unsent
	if !sh.inQueue {
		return
	}
	for u := range urgencies {
		sh.queues[u].drop(st)
	}
	b.updateShare(sh, false)
	b.startServing()
}

// contended reports whether somebody waits who would go on if the account had less under way.
func (b *budget) contended(sh *share) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sh.inQueue || b.starving[initialConfig]+b.starving[updatedConfig] > 0
}

// serve starts to serve the lines, in a goroutine of its own: bytes are given back from within the transport. The caller holds b.mu.
func (b *budget) startServing() {
	b.round++
	if b.serving || b.used >= b.limit || len(b.queuedShares) == 0 {
		return
	}
	b.serving = true
	go func() {
		for st := b.next(); st != nil; st = b.next() {
			st.flushInTurn()
		}
	}()
}

// next takes the next stream out of a line while there are bytes.
func (b *budget) next() *stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	for u := range urgencies {
		for _, sh := range b.queuedShares {
			if b.used >= b.limit || b.blocked == b.round {
				break
			}
			if sh.blocked == b.round || b.starving[u] > 0 && !sh.starving[u] {
				continue
			}
			if st := sh.queues[u].pop(); st != nil {
				b.updateShare(sh, false)
				return st
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

// charge is what a response takes of the budget.
type budgetBytes struct {
	unsent atomic.Int64
	stream *stream
	// marked is true if a marker will release it.
	marked bool
}

// release gives it back, once.
func (c *budgetBytes) release() {
	if size := c.unsent.Swap(0); size > 0 {
		c.stream.server.budget.giveBack(&c.stream.account.unsent, int(size))
	}
}
