package mcp

import (
	"context"
	"slices"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	// maxNames bounds the clusters that one request names.
	maxNames = 2000
)

// edsNode is a sidecar's: an istiod tells a waypoint endpoints behind tunnels.
func (s *Source) edsNode() *core.Node {
	n := s.node("sidecar")
	n.Metadata.Fields["DISABLE_HBONE_SEND"] = structpb.NewStringValue("true")
	return n
}

// followEndpoints reads one stream of EDS to its end: the endpoints of all clusters of the registry, by difference.
func (s *Source) followEndpoints(ctx context.Context) (useful bool, err error) {
	// Without a name the first request would ask for everything.
	for !s.wantsEndpoints() {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.registry.wake:
		}
	}
	conn, err := s.cfg.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	messages := receive(ctx, stream.Recv)
	node, subscribed := s.edsNode(), map[string]*cluster{}
	subscribe := func() error {
		for {
			add, gone := s.subscriptions(subscribed, maxNames)
			if len(add)+len(gone) == 0 {
				return nil
			}
			if err := stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: endpointType, Node: node, ResourceNamesSubscribe: add,
				ResourceNamesUnsubscribe: gone}); err != nil {
				return ending(ctx, messages)
			}
			node = nil
		}
	}
	if err := subscribe(); err != nil {
		return false, err
	}
	patience := s.cfg.Clock.NewTimer(silentAfter)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return useful, ctx.Err()
		case <-patience.C():
			s.endpointsAreLate()
		case <-s.registry.wake:
			if err := subscribe(); err != nil {
				return useful, err
			}
		case r := <-messages:
			if r.err != nil {
				return useful, r.err
			}
			answer := &discovery.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.message.GetNonce()}
			if err := s.takeEndpoints(ctx, r.message); err != nil {
				answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
			} else {
				useful = true
			}
			if err := stream.Send(answer); err != nil {
				return useful, ending(ctx, messages)
			}
		}
	}
}

// wantsEndpoints reports whether there is a cluster to ask for.
func (s *Source) wantsEndpoints() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.registry.clusters) > 0
}

// subscriptions brings subscribed in line with the clusters of the registry, and returns up to n that are new, and
// those that are gone, sorted. One that was gone and came back meanwhile is gone first, so that the server tells it
// again.
func (s *Source) subscriptions(subscribed map[string]*cluster, n int) (add, gone []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range subscribed {
		if s.registry.clusters[name] != c {
			gone = append(gone, name)
		}
	}
	for name, c := range s.registry.clusters {
		if subscribed[name] == nil && len(add) < n {
			subscribed[name] = c
			add = append(add, name)
		}
	}
	for _, name := range gone {
		delete(subscribed, name)
	}
	slices.Sort(add)
	slices.Sort(gone)
	return add, gone
}

// endpointsFailed notes why EDS cannot be read. The last endpoints stay.
func (s *Source) endpointsFailed(err error) {
	s.mu.Lock()
	r, now := s.registry, s.cfg.Clock.Now()
	first := r.failure == nil
	if first {
		r.since = now
	}
	r.failure = err
	late := now.Sub(s.started) >= silentAfter
	s.mu.Unlock()
	if first {
		s.cfg.Log.Warn("endpoints of an MCP server cannot be read, the last ones stay", "source", s.name, "error", err)
	}
	if late {
		s.endpointsAreLate()
	}
}

// endpointsAreLate lets the source be synced without the services whose endpoints are not known.
func (s *Source) endpointsAreLate() {
	s.mu.Lock()
	s.registry.impatient = true
	s.mu.Unlock()
	s.settle()
}
