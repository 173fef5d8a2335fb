package serve

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// minMoveAge is how old a stream must be to be moved: its proxy should not be sent on while it starts, nor from replica to replica.
const minReconnectAge = 5 * time.Second

// errMoved ends a stream as its maximum age does: its client is asked to reconnect.
var errRebalanced = errors.New("this xds-server has more proxies than the others")

// mover tells a stream's handler to end it.
type ender struct {
	// leave has room for one error, which the first caller of end puts in.
	endWith chan error
	ending  atomic.Bool
}

// end makes the handler end the stream with an error. It waits for nothing.
func (e *ender) end(why error) {
	if !e.ending.Swap(true) {
		e.endWith <- why
	}
}

// Streams is how many streams are open, without those that an identity has beyond its workloads: who opens many must
// not push the proxies of others to other replicas.
func (s *Server) Streams() int {
	s.mu.Lock()
	open := len(s.streams)
	s.mu.Unlock()
	return max(open-s.quotas.excess(), 0)
}

// Accepting reports whether new streams are served: there is a configuration, and the process is not about to end.
func (s *Server) Accepting() bool {
	select {
	case <-s.draining:
		return false
	default:
		return s.Served() != nil
	}
}

// Move ends up to n streams so that their proxies reconnect, to another replica if there is one, and returns how many
// it has ended. Those go first of which an identity has more than workloads, then the oldest: whoever has just come
// stays. Streams whose proxies wait for something, their first configuration above all, stay too.
func (s *Server) Reconnect(n int) int {
	streams := s.all()
	youngest := s.clock.Now().Add(-minReconnectAge)
	streams = slices.DeleteFunc(streams, func(st *stream) bool { return st.connectedAt.After(youngest) })
	slices.SortFunc(streams, func(a, b *stream) int { return a.connectedAt.Compare(b.connectedAt) })
	excess := s.quotas.excesses()
	moved := 0
	for _, first := range []bool{true, false} {
		for _, st := range streams {
			if moved >= n {
				break
			}
			if first && excess[st.account] == 0 || !st.reconnectIfIdle() {
				continue
			}
			if moved++; first {
				excess[st.account]--
			}
		}
	}
	return moved
}

// move ends the stream unless its proxy waits for something.
func (st *stream) reconnectIfIdle() bool {
	st.lock()
	defer st.unlock()
	if st.closed || st.ending.Load() || st.class == nil || len(st.types) == 0 {
		return false
	}
	for _, sub := range st.types {
		if !sub.answered || sub.pending() {
			return false
		}
	}
	st.end(errRebalanced)
	return true
}
