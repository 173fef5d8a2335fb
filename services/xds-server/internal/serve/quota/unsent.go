package quota

import (
	"slices"
	"sync"
)

// UnsentBytes bounds the bytes that were handed to gRPC and that the network has not taken yet. A stream whose response
// does not fit waits in a queue. Streams that have no configuration yet go before those that have an older one.
//
// Each account may have as many bytes unsent as are left for the others: alone it may use half of the limit, beside
// another that uses its half a third, and so on. So some bytes are always left, however many streams of some accounts
// do not read. An account without unsent bytes goes before one with some.
type UnsentBytes struct {
	limit int64

	mu sync.Mutex
	// used may exceed limit by one response; otherwise a response larger than the limit could never be sent.
	used int64
	// queuedShares are the shares with waiting streams, in the order of their turns.
	queuedShares []*Share
	// starving counts, by urgency, the shares that have waiting streams and no unsent bytes.
	starving [urgencies]int
	// round increases whenever bytes are given back. blocked is the last round in which there were too few bytes for a
	// starving share.
	round, blocked uint64
	// serving is true while the goroutine of startServing runs.
	serving bool
}

// NewUnsentBytes makes a budget of limit bytes.
func NewUnsentBytes(limit int) *UnsentBytes { return &UnsentBytes{limit: int64(limit)} }

// Waiter is a stream that can wait for its turn.
type Waiter interface {
	// FlushInTurn is called when it is the stream's turn, with nothing locked. It calls Take for what the stream has.
	FlushInTurn()
}

// Urgencies of what a stream waits for: its first configuration, or an update.
const (
	initialConfig = iota
	updatedConfig
	urgencies
)

// Share is the part of the bytes that one account uses. The mutex of UnsentBytes guards it.
type Share struct {
	used   int64
	queues [urgencies]queue
	// starving is true where UnsentBytes.starving counts this share.
	starving [urgencies]bool
	// inQueue is true while the share is in UnsentBytes.queuedShares.
	inQueue bool
	// blocked is the last round in which the share asked for more than it may have.
	blocked uint64
}

func (sh *Share) waits() bool {
	return len(sh.queues[initialConfig].waiting)+len(sh.queues[updatedConfig].waiting) > 0
}

// queue holds waiting streams, each once, first in first out.
type queue struct {
	line    []Waiter
	waiting map[Waiter]struct{}
}

// push adds a stream at the end, or with back at the head.
func (q *queue) push(st Waiter, back bool) {
	if _, ok := q.waiting[st]; ok {
		return
	}
	if q.waiting == nil {
		q.waiting = map[Waiter]struct{}{}
	}
	q.waiting[st] = struct{}{}
	if back {
		q.line = slices.Insert(q.line, 0, st)
	} else {
		q.line = append(q.line, st)
	}
}

func (q *queue) pop() Waiter {
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

func (q *queue) drop(st Waiter) {
	if delete(q.waiting, st); len(q.waiting) == 0 {
		q.line = nil
	}
}

// Take reserves size bytes for a response of the stream. If it returns false, the stream is in the queue, and its
// FlushInTurn is called when it is its turn. inTurn is true in a call from there, first if the stream has not been sent
// its first configuration.
func (b *UnsentBytes) Take(st Waiter, sh *Share, size int, first, inTurn bool) bool {
	urgency := updatedConfig
	if first {
		urgency = initialConfig
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fits(sh, int64(size)) && !b.yields(sh, urgency, inTurn) {
		b.used += int64(size)
		sh.used += int64(size)
		if inTurn && sh.inQueue { // the turn passes to the other accounts
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

// fits reports whether the account of the share may have so many more bytes unsent.
func (b *UnsentBytes) fits(sh *Share, size int64) bool {
	if sh.used == 0 {
		return b.used == 0 || b.used+size <= b.limit
	}
	return sh.used+size <= b.limit-b.used
}

// yields reports whether a waiting stream goes before a stream of this share.
func (b *UnsentBytes) yields(sh *Share, urgency int, inTurn bool) bool {
	for u := range urgency + 1 {
		if !inTurn && len(sh.queues[u].waiting) > 0 || b.starving[u] > 0 && (sh.used > 0 || !inTurn) {
			return true
		}
	}
	return false
}

// updateShare brings starving and queuedShares up to date with the share. With back, a share that is queued again goes
// before the others.
func (b *UnsentBytes) updateShare(sh *Share, back bool) {
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

// GiveBack returns bytes of an account and starts to serve waiting streams.
func (b *UnsentBytes) GiveBack(sh *Share, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(size)
	sh.used -= int64(size)
	b.updateShare(sh, false)
	b.startServing()
}

// Remove takes a stream that ends out of the queue.
func (b *UnsentBytes) Remove(st Waiter, sh *Share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sh.inQueue {
		return
	}
	for u := range urgencies {
		sh.queues[u].drop(st)
	}
	b.updateShare(sh, false)
	b.startServing()
}

// Contended reports whether a stream waits that could go on if the account had fewer bytes unsent.
func (b *UnsentBytes) Contended(sh *Share) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sh.inQueue || b.starving[initialConfig]+b.starving[updatedConfig] > 0
}

// startServing calls FlushInTurn of waiting streams, in a goroutine of its own because the transport calls GiveBack.
// The caller holds b.mu.
func (b *UnsentBytes) startServing() {
	b.round++
	if b.serving || b.used >= b.limit || len(b.queuedShares) == 0 {
		return
	}
	b.serving = true
	go func() {
		for st := b.next(); st != nil; st = b.next() {
			st.FlushInTurn()
		}
	}()
}

// next takes the next stream out of its queue; nil if no bytes are left.
func (b *UnsentBytes) next() Waiter {
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

// Waiting is how many streams wait for their turn.
func (b *UnsentBytes) Waiting() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sh := range b.queuedShares {
		n += len(sh.queues[initialConfig].waiting) + len(sh.queues[updatedConfig].waiting)
	}
	return n
}

// InUse is how many bytes are reserved.
func (b *UnsentBytes) InUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
