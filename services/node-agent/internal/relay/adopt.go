package relay

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"
)

// adoptions are the responses of one stream for an AgentResource with Adopt: one in flight, and the newest of those
// that have come meanwhile.
type adoptions struct {
	mu      sync.Mutex
	waiting proto.Message
	// cancel ends what is in flight; nil if nothing is.
	cancel context.CancelFunc
}

// adopt has a response adopted and answered, and returns at once. What it supersedes is not answered any more.
func (s *agentStream) adopt(resp proto.Message) {
	a := &s.adoptions
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = resp
	if a.cancel != nil {
		a.cancel()
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	a.cancel = cancel
	go s.adoptAll(ctx, cancel)
}

// adoptAll answers what waits until nothing does, or the stream ends.
func (s *agentStream) adoptAll(ctx context.Context, cancel context.CancelFunc) {
	a := &s.adoptions
	for {
		a.mu.Lock()
		resp := a.waiting
		a.waiting = nil
		if resp == nil || s.ctx.Err() != nil {
			a.cancel = nil
			a.mu.Unlock()
			cancel()
			return
		}
		if ctx.Err() != nil { // that of what was superseded
			ctx, cancel = context.WithCancel(s.ctx)
			a.cancel = cancel
		}
		a.mu.Unlock()
		if m := s.take(ctx, resp); ctx.Err() == nil {
			_ = s.reply(m) // the receiving side of the stream ends with its error, too
		}
	}
}
