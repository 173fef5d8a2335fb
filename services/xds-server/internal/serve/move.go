package serve

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// minMoveAge is how old a stream must be to be moved: its proxy should not be sent on while it starts, nor from replica to replica.
const minMoveAge = 5 * time.Second

// errMoved ends a stream as its maximum age does.
var errMoved = status.Error(codes.Unavailable, "this xds-server has more proxies than the others, please reconnect")

// mover tells a stream's handler to end it.
type mover struct {
	leave chan struct{}
	// leaving is true once leave is closed.
	leaving bool
}

// Streams is how many streams are open.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
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

// Move ends up to n streams so that their proxies reconnect, to another replica if there is one, and returns how many it has ended. The
// oldest go first: whoever has just come stays. Streams whose proxies wait for something, their first configuration above all, stay too.
func (s *Server) Move(n int) int {
	streams := s.all()
	youngest := s.clock.Now().Add(-minMoveAge)
	streams = slices.DeleteFunc(streams, func(st *stream) bool { return st.connectedAt.After(youngest) })
	slices.SortFunc(streams, func(a, b *stream) int { return a.connectedAt.Compare(b.connectedAt) })
	moved := 0
	for _, st := range streams {
		if moved >= n {
			break
		}
		if st.move() {
			moved++
		}
	}
	return moved
}

// move ends the stream unless its proxy waits for something.
func (s *stream) move() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.leaving || s.class == nil || len(s.types) == 0 {
		return false
	}
	for _, sub := range s.types {
		if !sub.answered || sub.pending() {
			return false
		}
	}
	s.leaving = true
	close(s.leave)
	return true
}
