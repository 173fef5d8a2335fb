package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// peer is an MCP server that does what the test says.
type peer struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	t       testing.TB
	address string
	server  *grpc.Server
	streams chan *stream
	eds     chan *edsStream
}

// stream is one stream of the client.
type stream struct {
	t        testing.TB
	ads      discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	requests chan *discovery.DiscoveryRequest
	first    *discovery.DiscoveryRequest
	end      chan error
	nonce    int
}

func newPeer(t testing.TB, options ...grpc.ServerOption) *peer {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, address: lis.Addr().String(), streams: make(chan *stream, 16), eds: make(chan *edsStream, 16),
		server: grpc.NewServer(append(options, grpc.MaxSendMsgSize(1<<30))...)}
	discovery.RegisterAggregatedDiscoveryServiceServer(p.server, p)
	go func() { _ = p.server.Serve(lis) }()
	t.Cleanup(p.server.Stop)
	return p
}

// StreamAggregatedResources hands the stream to the test.
func (p *peer) StreamAggregatedResources(ads discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s := &stream{t: p.t, ads: ads, requests: make(chan *discovery.DiscoveryRequest, 4096), end: make(chan error, 1)}
	go func() {
		for {
			m, err := ads.Recv()
			if err != nil {
				close(s.requests)
				return
			}
			s.requests <- m
		}
	}()
	p.streams <- s
	select {
	case err := <-s.end:
		return err
	case <-ads.Context().Done():
		return nil
	}
}

// next waits for the client's next stream, and for its requests: one for each version of each kind.
func (p *peer) next() *stream {
	p.t.Helper()
	select {
	case s := <-p.streams:
		want := 0
		for _, k := range mcp.Kinds() {
			want += len(k.Versions)
		}
		for range want {
			m := s.request()
			if s.first == nil {
				s.first = m
			}
		}
		return s
	case <-time.After(testkit.Patience):
		p.t.Fatal("the client opens no stream")
		return nil
	}
}

func (s *stream) request() *discovery.DiscoveryRequest {
	s.t.Helper()
	select {
	case m, ok := <-s.requests:
		if !ok {
			s.t.Fatal("the client has ended the stream")
		}
		return m
	case <-time.After(testkit.Patience):
		s.t.Fatal("the client sends nothing")
		return nil
	}
}

// tell sends a list and returns the client's answer.
func (s *stream) tell(url string, entries ...*anypb.Any) *discovery.DiscoveryRequest {
	s.t.Helper()
	s.nonce++
	m := &discovery.DiscoveryResponse{TypeUrl: url, Nonce: fmt.Sprint(s.nonce), VersionInfo: "v", Resources: entries}
	if err := s.ads.Send(m); err != nil {
		s.t.Fatal(err)
	}
	answer := s.request()
	if answer.ResponseNonce != m.Nonce || answer.TypeUrl != url {
		s.t.Fatalf("answered with %v, want nonce %s of %s", answer, m.Nonce, url)
	}
	return answer
}

// rest answers everything but some types with an empty list, as istiod does.
func (s *stream) rest(but ...string) {
	s.t.Helper()
	for _, k := range mcp.Kinds() {
		for _, v := range k.Versions {
			if url := mcp.URL(k, v); !slices.Contains(but, url) {
				s.tell(url)
			}
		}
	}
}

const (
	entriesV1    = "networking.istio.io/v1/ServiceEntry"
	entriesBeta  = "networking.istio.io/v1beta1/ServiceEntry"
	entriesAlpha = "networking.istio.io/v1alpha3/ServiceEntry"
)

// serviceEntry is an entry of a list, changed.
func serviceEntry(name string, change ...func(*mcpv1alpha1.Resource, *networking.ServiceEntry)) *anypb.Any {
	spec := &networking.ServiceEntry{
		Hosts: []string{strings.ReplaceAll(name, "/", ".") + ".example.com"}, Resolution: networking.ServiceEntry_DNS,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	}
	m := &mcpv1alpha1.Resource{Metadata: &mcpv1alpha1.Metadata{Name: name}}
	for _, c := range change {
		c(m, spec)
	}
	body, err := anypb.New(spec)
	if err != nil {
		panic(err)
	}
	m.Body = body
	out, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return out
}

func port(n uint32) func(*mcpv1alpha1.Resource, *networking.ServiceEntry) {
	return func(_ *mcpv1alpha1.Resource, s *networking.ServiceEntry) { s.Ports[0].Number = n }
}

// client is a source of the test, and what it has delivered.
type client struct {
	*Source
	t     testing.TB
	clock *testkit.Clock
	saved *lastgood.Dir
	stop  func()

	mu      sync.Mutex
	objects map[object.Key]*object.Object
	events  int
}

func (c *client) handle(_ context.Context, _ string, events []source.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events += len(events)
	for _, e := range events {
		if e.Object == nil {
			delete(c.objects, e.Key)
		} else {
			c.objects[e.Key] = e.Object
		}
	}
}

// delivered are the names of the objects in force with the port of each.
func (c *client) delivered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, k := range slices.SortedFunc(maps.Keys(c.objects), object.Key.Compare) {
		text := k.Namespace + "/" + k.Name
		if s, ok := c.objects[k].Body.(*networking.ServiceEntry); ok {
			text += fmt.Sprintf(":%d", s.Ports[0].Number)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// has waits for objects in force.
func (c *client) has(want string) {
	c.t.Helper()
	testkit.Eventually(c.t, testkit.Patience, func() error {
		if got := c.delivered(); got != want {
			return fmt.Errorf("in force is %q, want %q", got, want)
		}
		return nil
	})
}

func (c *client) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events
}

// follow starts a client of an address. Its saved state is in dir, if that is not empty.
func follow(t testing.TB, address, dir string, change ...func(*Config)) *client {
	t.Helper()
	c := &client{t: t, clock: testkit.NewClock(time.Now()), objects: map[object.Key]*object.Object{}}
	cfg := Config{
		Host: address, Node: Node{Name: "config-watcher", Namespace: "istio-system", Domain: "cluster.local"}, Log: testkit.Logger(t),
		Clock: c.clock,
		Dial:  dialTo(address),
	}
	if dir != "" {
		cfg.Saved = lastgood.New(lastgood.Config{Path: dir, Log: cfg.Log, Clock: clock.Real()})
		c.saved = cfg.Saved
	}
	for _, edit := range change {
		edit(&cfg)
	}
	c.Source = New(cfg)
	c.Handle(c.handle)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if c.saved != nil {
			if err := c.saved.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(c.stop)
	return c
}

// reopen ends a stream and lets the client open the next.
func (c *client) reopen(p *peer, s *stream) *stream {
	c.t.Helper()
	s.end <- fmt.Errorf("the test ends the stream")
	return c.after(p)
}

// after moves the client's clock until it has opened a stream.
func (c *client) after(p *peer) *stream {
	c.t.Helper()
	testkit.Eventually(c.t, testkit.Patience, func() error {
		if len(p.streams) > 0 {
			return nil
		}
		c.clock.Advance(200 * time.Millisecond)
		return fmt.Errorf("no stream")
	})
	return p.next()
}

func synced(c *client) error { return errorIf(!c.HasSynced(), "not synced") }

func errorIf(bad bool, text string) error {
	if bad {
		return errors.New(text)
	}
	return nil
}

func response(url string, entries ...*anypb.Any) *discovery.DiscoveryResponse {
	return &discovery.DiscoveryResponse{TypeUrl: url, Nonce: "n", Resources: entries}
}

func dialTo(address string) func(context.Context) (*grpc.ClientConn, error) {
	return func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes)))
	}
}
