package edge

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/wait"
)

// recorded are the resources that a control plane has for the proxy, by type and name.
type recorded map[string]map[string]*discovery.Resource

// record asks a control plane for what it has for the proxy, as an Envoy would, until all HTTPRoutes are there. The
// virtual hosts have to come by VHDS.
func record(ctx context.Context, address string) (recorded, error) {
	ctx, stop := context.WithTimeout(ctx, servedWithin)
	defer stop()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	metadata, err := structpb.NewStruct(nodeMetadata)
	if err != nil {
		return nil, err
	}
	node := &core.Node{Id: nodeID, Cluster: kube.EdgeName, Metadata: metadata}
	if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: wire.Cluster}); err != nil {
		return nil, err
	}
	out, reader := recorded{}, wire.NewReader()
	asked := map[string]bool{}
	for len(out[wire.VirtualHost]) < Routes/kube.RoutesPerHost || len(out[wire.Endpoint]) == 0 {
		r, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("%d virtual hosts: %w", len(out[wire.VirtualHost]), err)
		}
		if out[r.GetTypeUrl()] == nil {
			out[r.GetTypeUrl()] = map[string]*discovery.Resource{}
		}
		for _, resource := range r.GetResources() {
			out[r.GetTypeUrl()][resource.GetName()] = resource
		}
		raw, err := proto.Marshal(r)
		if err != nil {
			return nil, err
		}
		content, err := reader.Read(raw)
		if err != nil {
			return nil, err
		}
		requests := []*discovery.DeltaDiscoveryRequest{{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}}
		for _, next := range []struct {
			url   string
			names []string
			when  bool
		}{
			{wire.Endpoint, content.Endpoints, len(content.Endpoints) > 0}, {wire.Listener, nil, r.GetTypeUrl() == wire.Endpoint},
			{wire.Route, content.Routes, len(content.Routes) > 0}, {wire.VirtualHost, nil, len(content.Virtual) > 0},
		} {
			if next.when && !asked[next.url] {
				asked[next.url] = true
				requests = append(requests, &discovery.DeltaDiscoveryRequest{TypeUrl: next.url, ResourceNamesSubscribe: next.names})
			}
		}
		for _, request := range requests {
			if err := stream.Send(request); err != nil {
				return nil, err
			}
		}
	}
	return out, stream.CloseSend()
}

// bare is a server of ADS for one Envoy that computes nothing: it sends what was recorded, and what it is given.
type bare struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	held recorded

	mu     sync.Mutex
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	sent   int
}

// DeltaAggregatedResources implements the service. It reads requests until Envoy goes.
func (s *bare) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s.mu.Lock()
	s.stream = stream
	s.mu.Unlock()
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // Envoy has gone, as it may
		}
		if r.GetErrorDetail() != nil {
			return fmt.Errorf("rejected: %s", r.GetErrorDetail().GetMessage())
		}
		wanted := slices.Collect(maps.Values(s.held[r.GetTypeUrl()]))
		if r.GetTypeUrl() == wire.Endpoint || r.GetTypeUrl() == wire.Route {
			wanted = nil
			for _, name := range r.GetResourceNamesSubscribe() {
				if found := s.held[r.GetTypeUrl()][name]; found != nil {
					wanted = append(wanted, found)
				}
			}
		} else if r.GetResponseNonce() != "" {
			continue // an acknowledgement
		}
		if len(wanted) > 0 {
			if err := s.send(&discovery.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Resources: wanted}); err != nil {
				return err
			}
		}
	}
}

func (s *bare) send(r *discovery.DeltaDiscoveryResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	r.Nonce = fmt.Sprint(s.sent)
	return s.stream.Send(r)
}

// hosts makes virtual hosts for further HTTPRoutes after the pattern of the recorded one of HTTPRoute 0.
type hosts struct {
	name    string
	pattern *route.VirtualHost
	// there are the HTTPRoutes that exist.
	there map[int]bool
}

func newHosts(held recorded) (*hosts, error) {
	for name, resource := range held[wire.VirtualHost] {
		if !strings.Contains(name, "/"+kube.HTTPRouteHost(0)) {
			continue
		}
		out := &hosts{name: name, pattern: &route.VirtualHost{}, there: map[int]bool{}}
		return out, resource.GetResource().UnmarshalTo(out.pattern)
	}
	return nil, fmt.Errorf("no virtual host for %s", kube.HTTPRouteHost(0))
}

// change makes HTTPRoute i exist, or not, and returns how Envoy is told.
func (h *hosts) change(i int, exists bool) (*discovery.DeltaDiscoveryResponse, error) {
	h.there[i] = exists
	out := proto.CloneOf(h.pattern)
	out.Name = strings.Replace(h.name, kube.HTTPRouteHost(0), kube.HTTPRouteHost(i), 1)
	out.Domains = []string{kube.HTTPRouteHost(i)}
	first := i - i%kube.RoutesPerHost
	out.Routes = slices.DeleteFunc(out.GetRoutes(), func(r *route.Route) bool {
		for n := range kube.RoutesPerHost {
			if r.GetMatch().GetPathSeparatedPrefix() == kube.HTTPRoutePath(n) {
				return !h.there[first+n]
			}
		}
		return false
	})
	response := &discovery.DeltaDiscoveryResponse{TypeUrl: wire.VirtualHost}
	if len(out.GetRoutes()) == 0 {
		response.RemovedResources = []string{out.GetName()}
		return response, nil
	}
	packed, err := anypb.New(out)
	response.Resources = []*discovery.Resource{{Name: out.GetName(), Version: fmt.Sprint(len(h.there), exists), Resource: packed}}
	return response, err
}

// alone measures how long Envoy itself takes: a bare server tells it what a contender had for it, and then adds and
// removes HTTPRoutes as Measure does, by the same virtual hosts: with these, no control plane can be faster. The CPU is
// Envoy's.
func (b *Bench) alone(ctx context.Context, dir string, held recorded) (added, removed *Change, err error) {
	pattern, err := newHosts(held)
	if err != nil {
		return nil, nil, err
	}
	server := &bare{held: held}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, server)
	go func() { _ = g.Serve(lis) }() // ends with Stop
	defer g.Stop()
	envoy, err := StartEnvoy(b.Envoy, dir, lis.Addr().String(), b.Clients)
	if err != nil {
		return nil, nil, err
	}
	defer envoy.Stop()
	for _, i := range []int{0, Routes - 1} {
		if err := b.client.Until(ctx, i, http.StatusOK); err != nil {
			return nil, nil, fmt.Errorf("Envoy alone: %w\n%s", err, envoy.LogTail())
		}
	}
	if err := wait.Pause(ctx, idleFor); err != nil {
		return nil, nil, err
	}
	changes := func(exists bool, status int) (*Change, error) {
		out := &Change{}
		used := envoy.CPU()
		for i := range b.Repeat {
			at := time.Now()
			r, err := pattern.change(Routes+i, exists)
			if err == nil {
				err = server.send(r)
			}
			if err == nil {
				err = b.client.Until(ctx, Routes+i, status)
			}
			if err != nil {
				return nil, fmt.Errorf("Envoy alone: %w\n%s", err, envoy.LogTail())
			}
			out.Delays = append(out.Delays, time.Since(at))
		}
		out.CPU = (envoy.CPU() - used) / time.Duration(b.Repeat)
		fmt.Fprintf(b.Log, "# Envoy alone: CPU %s, p50 %s, p99 %s\n", short(out.CPU), short(Percentile(out.Delays, 0.5)),
			short(Percentile(out.Delays, 0.99)))
		return out, nil
	}
	if added, err = changes(true, http.StatusOK); err == nil {
		removed, err = changes(false, http.StatusNotFound)
	}
	return added, removed, err
}
