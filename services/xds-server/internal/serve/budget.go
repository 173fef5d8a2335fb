package serve

import (
	"slices"
	"sync"
)

// budget bounds the bytes that were handed to gRPC and that the network has not taken yet. Who is refused waits in line, with its changes
// where they were; those who have no configuration yet stand before those who have an old one.
type budget struct {
	limit int64

	mu sync.Mutex
	// used may exceed limit by one response, so that one larger than the limit can go out at all.
	used          int64
	first, others queue
	// serving is true while a goroutine serves the line, blocked once the head of it asked for more than is left.
	serving, blocked bool
}

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
func (b *budget) take(s *stream, size int, first, served bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	queued := len(b.first.waiting) > 0 || !first && len(b.others.waiting) > 0
	if (served || !queued) && (b.used == 0 || b.used+int64(size) <= b.limit) {
		b.used += int64(size)
		return true
	}
	if first {
		b.first.push(s, served)
	} else {
		b.others.push(s, served)
	}
	b.blocked = b.blocked || served
	return false
}

// give returns bytes and serves who waits for them.
func (b *budget) give(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(size)
	b.blocked = false
	b.serve()
}

// leave takes a stream out of the line.
func (b *budget) leave(s *stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.first.drop(s)
	b.others.drop(s)
}

// contended reports whether somebody waits.
func (b *budget) contended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.first.waiting)+len(b.others.waiting) > 0
}

// serve starts to serve the line, in a goroutine of its own: bytes are given back from within the transport. The caller holds b.mu.
func (b *budget) serve() {
	if b.serving || b.used >= b.limit || len(b.first.waiting)+len(b.others.waiting) == 0 {
		return
	}
	b.serving = true
	go func() {
		for s := b.next(); s != nil; s = b.next() {
			s.resume()
		}
	}()
}

// next takes the next stream out of the line while there are bytes.
func (b *budget) next() *stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used < b.limit && !b.blocked {
		if s := b.first.pop(); s != nil {
			return s
		}
		if s := b.others.pop(); s != nil {
			return s
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
