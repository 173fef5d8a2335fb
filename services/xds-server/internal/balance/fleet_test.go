package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit/adstest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/balance"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/servetest"
)

// fasterClock is the machine's clock, several times as fast. The network seems slower by as much.
type fasterClock struct {
	start time.Time
	times int
}

func (h fasterClock) Now() time.Time {
	return h.start.Add(time.Since(h.start) * time.Duration(h.times))
}
func (h fasterClock) After(d time.Duration) <-chan time.Time { return h.NewTimer(d).C() }
func (h fasterClock) NewTimer(d time.Duration) clock.Timer {
	return fasterTimer{time.NewTimer(d / time.Duration(h.times)), h.times}
}

type fasterTimer struct {
	timer *time.Timer
	times int
}

func (t fasterTimer) C() <-chan time.Time        { return t.timer.C }
func (t fasterTimer) Stop() bool                 { return t.timer.Stop() }
func (t fasterTimer) Reset(d time.Duration) bool { return t.timer.Reset(d / time.Duration(t.times)) }

// kubeService does what a Service of Kubernetes does for the replicas: its name resolves to all of them, and a
// connection goes to any of them.
type kubeService struct {
	t     testing.TB
	clock clock.Clock
	mesh  []*configv1.Resource

	mu       sync.Mutex
	replicas []*balancedReplica
	port     string
}

// balancedReplica is one replica: a real ADS server on an address of its own.
type balancedReplica struct {
	*servetest.Server
	host string
	// conns are shared by the proxies; each carries many streams.
	conns []*grpc.ClientConn
}

const connsPerReplica = 8

// LookupHost implements the balancers' resolver.
func (s *kubeService) LookupHost(context.Context, string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var hosts []string
	for _, r := range s.replicas {
		hosts = append(hosts, r.host)
	}
	return hosts, nil
}

// scale starts replicas until there are n.
func (s *kubeService) scale(n int) {
	s.t.Helper()
	for i := len(s.replicas); i < n; i++ {
		r := s.start(i)
		s.mu.Lock()
		s.replicas = append(s.replicas, r)
		s.mu.Unlock()
	}
}

func (s *kubeService) start(i int) *balancedReplica {
	s.t.Helper()
	r := &balancedReplica{host: fmt.Sprintf("127.77.0.%d", i+1)}
	r.Server = servetest.New(s.t, servetest.Config{
		Translators: plantest.New().Translators(), Clock: s.clock, Change: func(c *serve.Config) { c.Instance = r.host },
	})
	r.Apply(s.mesh, nil)
	lis, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", net.JoinHostPort(r.host, s.port))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, s.port, err = net.SplitHostPort(lis.Addr().String()); err != nil {
		s.t.Fatal(err)
	}
	b, err := balance.New(balance.Config{
		Fleet: r.ADS, Instance: r.host, Peers: []string{"xds-server-peers:" + s.port}, Insecure: true,
		Log: slog.New(slog.DiscardHandler), Registerer: r.Registry, Clock: s.clock, Resolver: s,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	policy := servetest.Policy(auth.Anonymous())
	policy[balance.Methods] = auth.Anonymous()
	stop := r.Listen(lis, rpc.ServerConfig{Insecure: true, MaxConcurrentStreams: 10_000, Policy: policy, Registerer: r.Registry}, b.Register)
	for range connsPerReplica {
		conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			s.t.Fatal(err)
		}
		r.conns = append(r.conns, conn)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			s.t.Errorf("balance: %v", err)
		}
	})
	s.t.Cleanup(func() {
		cancel()
		for _, conn := range r.conns {
			_ = conn.Close() // the test is over
		}
		running.Wait()
		stop()
	})
	return r
}

// pick returns a connection to any of the replicas.
func (s *kubeService) pick() *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := s.replicas[rand.IntN(len(s.replicas))].conns
	return conns[rand.IntN(len(conns))]
}

// counts returns the number of streams of each replica.
func (s *kubeService) counts() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var counts []int
	for _, r := range s.replicas {
		counts = append(counts, r.ADS.Streams())
	}
	return counts
}

// proxy is a delta client that keeps what it was sent and states it when it reconnects.
type proxy struct {
	service *kubeService
	seen    *observed
	id      string
	held    map[string]map[string]string
	// moves is how often it was asked to reconnect.
	moves int
}

// observed is what all proxies have seen.
type observed struct {
	configured, moves, resent, received atomic.Int64

	mu       sync.Mutex
	failures []string
}

func (o *observed) failed(id string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures = append(o.failures, id+": "+err.Error())
}

func (o *observed) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failures) > 0 {
		return fmt.Errorf("%d streams failed, the first: %s", len(o.failures), o.failures[0])
	}
	return nil
}

// errAskedToReconnect means that the replica has asked the proxy to reconnect because others have fewer streams.
var errAskedToReconnect = errors.New("moved")

// order is the order in which a sidecar subscribes to types.
var order = []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType}

// run stays connected until ctx ends, or until a stream ends for another reason than balancing.
func (p *proxy) run(ctx context.Context) {
	for {
		err := p.stream(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case !errors.Is(err, errAskedToReconnect):
			p.seen.failed(p.id, err)
			return
		case len(p.held) < len(order):
			p.seen.failed(p.id, errors.New("moved before it was configured"))
			return
		}
		p.moves++
		p.seen.moves.Add(1)
		select { // as node-agent does
		case <-ctx.Done():
			return
		case <-p.service.clock.After(time.Duration(rand.Int64N(int64(500 * time.Millisecond)))):
		}
	}
}

// stream opens one stream and receives until it ends.
func (p *proxy) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := adstest.OpenDelta(ctx, p.service.pick(), adstest.Node(p.id, nil))
	if err != nil {
		return err
	}
	again := len(p.held) == len(order)
	subscribe := func(url string) {
		names := []string{"*"}
		switch url {
		case resource.EndpointType:
			names = nil
			for name := range p.held[resource.ClusterType] {
				names = append(names, name)
			}
		case resource.RouteType:
			names = []string{"80"}
		}
		// An error of Send is io.EOF; Recv returns the reason.
		_ = client.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: names, InitialResourceVersions: p.held[url]})
	}
	if again {
		for _, url := range order {
			subscribe(url)
		}
	} else {
		subscribe(order[0])
	}
	for {
		m, err := client.Recv()
		if errors.Is(err, io.EOF) && strings.Contains(rpc.ReconnectAsked(client.Trailer()), "has more proxies than the others") {
			return errAskedToReconnect
		}
		if err != nil {
			return err
		}
		url := m.GetTypeUrl()
		first := p.held[url] == nil
		if first {
			p.held[url] = map[string]string{}
		}
		for _, r := range m.GetResources() {
			p.seen.received.Add(1)
			if again && p.held[url][r.GetName()] == r.GetVersion() {
				p.seen.resent.Add(1)
			}
			p.held[url][r.GetName()] = r.GetVersion()
		}
		for _, name := range m.GetRemovedResources() {
			delete(p.held[url], name)
		}
		_ = client.Answer(m, nil) // as above
		if !first {
			continue
		}
		if n := len(p.held); n < len(order) {
			subscribe(order[n])
		} else {
			p.seen.configured.Add(1)
		}
	}
}

// connect starts n proxies, which run until the test ends; stop ends them and waits.
func (s *kubeService) connect(n int) (proxies []*proxy, seen *observed, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	seen = &observed{}
	for i := range n {
		id := adstest.Sidecar(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), fmt.Sprintf("app-%d", i), "default")
		p := &proxy{service: s, seen: seen, id: id, held: map[string]map[string]string{}}
		proxies = append(proxies, p)
		running.Go(func() { p.run(ctx) })
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	s.t.Cleanup(stop)
	return proxies, seen, stop
}

// tenServices has ten services with endpoints.
func tenServices() []*configv1.Resource {
	var resources []*configv1.Resource
	for i := range 10 {
		host := "svc-" + strconv.Itoa(i) + ".default.svc.cluster.local"
		resources = append(resources, meshtest.Service("default", host, 80),
			meshtest.Endpoints("default", host, 80, fmt.Sprintf("10.200.0.%d", i+1)))
	}
	return resources
}
