package serve

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/config"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
)

// namedTypes are requested by name only: for them an empty list of names is not the legacy wildcard.
var namedTypes = []string{
	resource.EndpointType, resource.RouteType, resource.ScopedRouteType, resource.VirtualHostType, resource.SecretType,
	resource.RuntimeType, resource.ExtensionConfigType,
}

// DeltaAggregatedResources implements the ADS service: the delta (incremental) variant.
func (s *Server) DeltaAggregatedResources(grpcStream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	st := s.newStream(grpcStream.Context(), true)
	monitored := &deltaMonitor{grpcStream, st}
	return s.handle(st, func(ctx context.Context) error {
		loop := delta.NewServer(ctx, st, xds.CallbackFuncs{
			StreamDeltaResponseFunc: func(_ int64, _ *discovery.DeltaDiscoveryRequest, m *discovery.DeltaDiscoveryResponse) {
				st.deltaSent(m)
			},
		}, config.DeactivateLegacyWildcardForTypes(namedTypes))
		return loop.DeltaStreamHandler(monitored, resource.AnyType)
	})
}

// StreamAggregatedResources implements the ADS service: the state-of-the-world (sotw) variant.
func (s *Server) StreamAggregatedResources(grpcStream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	st := s.newStream(grpcStream.Context(), false)
	monitored := &sotwMonitor{grpcStream, st}
	return s.handle(st, func(ctx context.Context) error {
		// WithOrderedADS makes the loop take all responses from one channel, in the order in which flush has handed
		// them out. It does not choose that order: sendOrder does. Without it, the loop has a channel for each type and
		// takes the responses that are ready in a random order.
		loop := sotw.NewServer(ctx, st, xds.CallbackFuncs{
			StreamRequestFunc: func(_ int64, req *discovery.DiscoveryRequest) error { st.observeSotw(req); return nil },
			StreamResponseFunc: func(_ context.Context, _ int64, _ *discovery.DiscoveryRequest, m *discovery.DiscoveryResponse) {
				st.sotwSent(m)
			},
		}, sotw.WithOrderedADS(), sotw.WithLogger(log.LoggerFuncs{}), config.DeactivateLegacyWildcardForTypes(namedTypes))
		return loop.StreamHandler(monitored, resource.AnyType)
	})
}

func (s *Server) newStream(ctx context.Context, incremental bool) *stream {
	st := &stream{server: s, delta: incremental, ctx: ctx, connectedAt: s.clock.Now(), wake: make(chan struct{}, 1)}
	st.endWith = make(chan error, 1)
	st.clock = s.clock.Now
	if peer, ok := auth.PeerFrom(ctx); ok {
		st.peer = &peer
	}
	return st
}

// handle runs a stream's loop until it ends, or until the stream must end for another reason. It does not wait for the
// loop then: the loop may be stuck in a send that only the end of the call interrupts.
func (s *Server) handle(st *stream, loop func(context.Context) error) error {
	ctx, cancel := context.WithCancel(st.ctx)
	defer cancel()
	account, err := s.quotas.Open(st.ctx, st.peer)
	if err != nil {
		return err
	}
	st.account = account
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
	done := make(chan error, 1)
	go func() { done <- s.guard(ctx, loop) }()

	var age <-chan time.Time
	if s.maxAge > 0 {
		age = s.clock.After(time.Duration(float64(s.maxAge) * (0.9 + 0.2*s.rand())))
	}
	watchdog := s.clock.After(s.stallTimeout)
	var overdue <-chan time.Time
	for {
		select {
		case err := <-done:
			select {
			case err = <-st.endWith: // endWithStatus has ended the loop
				return st.endStatus(err)
			default:
				return err
			}
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
			overdue = s.clock.After(s.orderTimeout)
		case <-overdue:
			overdue = nil
			st.flushAfterTimeout()
		}
	}
}

// endStatus returns the status of a stream that ender.end has ended.
func (st *stream) endStatus(err error) error {
	if errors.Is(err, errRebalanced) {
		return rpc.AskToReconnect(st.ctx, err.Error())
	}
	return err
}

// guard recovers from a panic of the loop, whose goroutine the gRPC server's recovery does not cover.
func (s *Server) guard(ctx context.Context, loop func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("stream panicked", "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return loop(ctx)
}

// Register adds the ADS service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
}
