package rpc

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
)

// call is a call that the tap has admitted; it lives until its stream ends.
type call struct {
	conn  *conn
	id    uint32
	meter *callMeter
	// owner is nil while the connection is unauthenticated.
	owner *identity
}

type callKey struct{}

// connOf returns the connection of a call; nil if the server did not accept it through connLimit.
func connOf(ctx context.Context) *conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	a, _ := p.Addr.(connAddr)
	return a.conn
}

// begin counts a call, and follows its messages from now on. caller is nil for methods that need no credentials;
// otherwise the connection is counted for the caller's identity from its first call on. The tap calls begin on the
// connection's reading goroutine.
func (c *conn) begin(ctx context.Context, caller *auth.Peer) (context.Context, error) {
	if caller != nil {
		if err := c.identify(caller.ID.String()); err != nil {
			defer func() { _ = c.closeWith("identity", err) }()
			return ctx, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &call{conn: c, owner: c.owner}
	if k.owner == nil {
		if c.anonymous >= maxUnauthenticatedCalls {
			return ctx, status.Error(codes.ResourceExhausted, errTooManyAnonymous.Error())
		}
		c.anonymous++
	} else if err := c.limit.tracker.beginCall(k.owner); err != nil {
		return ctx, status.Error(codes.ResourceExhausted, err.Error())
	}
	k.id, k.meter = c.meter.open()
	// gRPC cancels the context when the stream ends, for whatever reason.
	context.AfterFunc(ctx, k.end)
	return context.WithValue(ctx, callKey{}, k), nil
}

func (k *call) end() {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.owner == nil {
		c.anonymous--
	} else {
		c.limit.tracker.endCall(k.owner)
	}
	c.meter.close(k.id, k.meter)
	c.releaseExcess()
}

// taken is called when the handler has received a message of n bytes on the wire.
func (k *call) taken(n int) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meter.taken(k.meter, n)
	c.releaseExcess()
}

// callStats tells each connection which of its messages the handlers have received, and gives it a context that is
// cancelled when it closes. grpc-go leaves the deadline timer of a call that a tap refuses running; as a child of this
// context, the timer stops when the connection closes.
type callStats struct{}

type connCancelKey struct{}

func (callStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, connCancelKey{}, cancel)
}

func (callStats) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		if cancel, ok := ctx.Value(connCancelKey{}).(context.CancelFunc); ok {
			cancel()
		}
	}
}

func (callStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (callStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	in, ok := s.(*stats.InPayload)
	if !ok {
		return
	}
	if k, ok := ctx.Value(callKey{}).(*call); ok {
		k.taken(in.WireLength)
	}
}
