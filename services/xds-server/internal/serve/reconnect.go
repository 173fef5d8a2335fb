package serve

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// minReconnectAge is how old a stream must be before Reconnect ends it: a proxy that is starting, or that has just come
// from another replica, is left alone.
const minReconnectAge = 5 * time.Second

// errRebalanced makes Server.handle ask the client to reconnect, as at the maximum age.
var errRebalanced = errors.New("this xds-server has more proxies than the others")

// ender makes Server.handle end the stream.
type ender struct {
	// endWith has room for one error, which the first call of end puts in.
	endWith chan error
	ending  atomic.Bool
}

// end ends the stream with an error. It does not wait. Calls after the first do nothing.
func (e *ender) end(err error) {
	if !e.ending.Swap(true) {
		e.endWith <- err
	}
}

// Streams is the number of open streams, without those that an identity has beyond its workloads: one who opens many
// must not push the proxies of others to other replicas.
func (s *Server) Streams() int {
	s.mu.Lock()
	open := len(s.streams)
	s.mu.Unlock()
	return max(open-s.quotas.Excess(), 0)
}

// Accepting reports whether new streams are served: a revision was applied, and the process is not draining.
func (s *Server) Accepting() bool {
	select {
	case <-s.draining:
		return false
	default:
		return s.Served() != nil
	}
}

// Drain asks the clients of all streams, and of streams that are opened later, to reconnect, so that they go to another
// replica while this one still answers. Server.handle of each stream sees it.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Reconnect asks up to n clients to reconnect, which takes them to another replica if there is one, and returns how
// many it has asked. The balancer calls it. It begins with streams that an identity has beyond its workloads, then
// takes the oldest. Streams that are young, or that wait for a response or an ACK, stay.
func (s *Server) Reconnect(n int) int {
	streams := s.all()
	youngest := s.clock.Now().Add(-minReconnectAge)
	streams = slices.DeleteFunc(streams, func(st *stream) bool { return st.connectedAt.After(youngest) })
	slices.SortFunc(streams, func(a, b *stream) int { return a.connectedAt.Compare(b.connectedAt) })
	excess := s.quotas.Excesses()
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

// reconnectIfIdle asks the client to reconnect, unless it waits for something, and reports whether it was asked.
func (st *stream) reconnectIfIdle() bool {
	st.lock()
	defer st.unlock()
	if st.closed || st.ending.Load() || st.class == nil || !st.client.Settled() {
		return false
	}
	st.end(errRebalanced)
	return true
}
