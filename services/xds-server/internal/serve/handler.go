package serve

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
)

// DeltaAggregatedResources implements the ADS service: the delta (incremental) variant.
func (s *Server) DeltaAggregatedResources(grpcStream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.handle(s.newStream(grpcStream, true))
}

// StreamAggregatedResources implements the ADS service: the state-of-the-world (sotw) variant.
func (s *Server) StreamAggregatedResources(grpcStream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.handle(s.newStream(grpcStream, false))
}

func (s *Server) newStream(grpcStream grpc.ServerStream, delta bool) *stream {
	st := &stream{
		server: s, grpc: grpcStream, delta: delta, ctx: grpcStream.Context(), connectedAt: s.clock.Now(), wake: make(chan struct{}, 1),
		outbox: outbox{filled: make(chan struct{}, 1)},
	}
	st.endWith = make(chan error, 1)
	st.clock = s.clock.Now
	if peer, ok := auth.PeerFrom(st.ctx); ok {
		st.peer = &peer
	}
	return st
}

// handle runs receive and transmit of a stream until one of them ends the stream, or until it must end for another
// reason. It does not wait for them then: they may be stuck in a send or a receive that only the end of the call
// interrupts.
func (s *Server) handle(st *stream) error {
	ctx, cancel := context.WithCancel(st.ctx)
	defer cancel()
	account, err := s.quotas.Open(st.ctx, st.peer)
	if err != nil {
		return err
	}
	st.account = account
	st.client = s.newClient(st)
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	defer func() {
		st.close()
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}()
	if err := s.refuseBanned(st); err != nil {
		return err
	}
	var expired <-chan time.Time
	if cert := auth.ClientCertificate(st.ctx); cert != nil {
		// TLS and pkg/rpc use the real clock. pkg/rpc closes the connection a second after the certificate has expired.
		expired = s.clock.After(time.Until(cert.NotAfter))
	}
	done := make(chan error, 2)
	go func() { done <- s.guard(st.receive) }()
	go func() { done <- s.guard(func() error { return st.transmit(ctx) }) }()

	var age <-chan time.Time
	if s.maxAge > 0 {
		age = s.clock.After(time.Duration(float64(s.maxAge) * (0.9 + 0.2*s.rand())))
	}
	watchdog := s.clock.After(s.stallTimeout)
	var overdue <-chan time.Time
	for {
		select {
		case err := <-done:
			if errors.Is(err, errHalfClosed) {
				continue
			}
			return st.endStatus(err)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.draining:
			return rpc.AskToReconnect(st.ctx, "xds-server is shutting down")
		case err := <-st.endWith:
			return st.endStatus(err)
		case <-age:
			return rpc.AskToReconnect(st.ctx, "maximum connection age reached")
		case <-expired:
			return rpc.AskToReconnect(st.ctx, "the client certificate of this connection has expired")
		case <-watchdog:
			if st.stalledFor(s.unsent.Contended(&account.Unsent)) >= s.stallTimeout {
				s.metrics.stalled.Inc()
				return status.Error(codes.DeadlineExceeded, "the client takes no data")
			}
			watchdog = s.clock.After(s.stallTimeout)
		case <-st.wake:
			overdue = s.clock.After(s.limits.OrderTimeout)
		case <-overdue:
			overdue = nil
			st.flushAfterTimeout()
		}
	}
}

// endStatus returns the status of a stream that ends with err. What ender.end was called with goes before it, since it
// says why.
func (st *stream) endStatus(err error) error {
	select {
	case err = <-st.endWith:
	default:
	}
	if errors.Is(err, errRebalanced) {
		return rpc.AskToReconnect(st.ctx, err.Error())
	}
	return err
}

// guard recovers from a panic of a goroutine, which the gRPC server's recovery does not cover.
func (s *Server) guard(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("stream panicked", "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return run()
}

// Register adds the ADS service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
}
