package balance

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleet has streams that all can be ended and do not come back.
type fleet struct {
	mu      sync.Mutex
	streams int
	ready   bool
	// asked is the argument of each call of Reconnect.
	asked []int
}

func (f *fleet) Streams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streams
}

func (f *fleet) Accepting() bool { return f.ready }

func (f *fleet) Reconnect(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, n)
	f.streams -= n
	return n
}

func (f *fleet) leave(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams -= n
}

func config(f *fleet, change ...func(*Config)) Config {
	cfg := Config{
		Fleet: f, Instance: "own", Peers: []string{"127.0.0.1:1"}, Insecure: true, Log: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewPedanticRegistry(), Rand: func() float64 { return 0.5 },
	}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

func balancer(t *testing.T, cfg Config) *Balancer {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.peers.Close)
	return b
}

func TestNewChecksItsConfiguration(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no fleet":            func(c *Config) { c.Fleet = nil },
		"no instance":         func(c *Config) { c.Instance = "" },
		"no log":              func(c *Config) { c.Log = nil },
		"no registry":         func(c *Config) { c.Registerer = nil },
		"neither TLS nor not": func(c *Config) { c.Insecure = false },
		"both TLS and not":    func(c *Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13} },
		"a negative period":   func(c *Config) { c.Period = -time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(config(&fleet{}, change)); err == nil {
				t.Error("accepted")
			}
		})
	}
	if _, err := New(config(&fleet{}, func(c *Config) { c.Peers, c.Insecure = nil, false })); err != nil {
		t.Errorf("without peers: %v", err)
	}
}

// Streams are given away a few at a time over the whole window. Streams that end by themselves meanwhile count.
func TestReconnectsAreSpreadAndStopAtTheMean(t *testing.T) {
	f := &fleet{streams: 600, ready: true}
	clock := testkit.NewClock(epoch)
	b := balancer(t, config(f, func(c *Config) { c.Clock = clock }))
	moved := make(chan int)
	go func() { moved <- b.giveAway(t.Context(), decision{excess: 100, target: 500}, 2500*time.Millisecond) }()
	for i := range 25 {
		clock.WaitFor(t, 1)
		if i == 10 {
			f.leave(45)
		}
		next, _ := clock.NextIn()
		clock.Advance(next)
	}
	if n := <-moved; n != 55 || f.Streams() != 500 {
		t.Errorf("%d moved, %d left; want 55 and 500", n, f.Streams())
	}
	if len(f.asked) < 10 || slices.Max(f.asked) > 4 {
		t.Errorf("asked for %v, want a few at a time", f.asked)
	}
	if took := clock.Now().Sub(epoch); took < 2*time.Second || took > 2500*time.Millisecond {
		t.Errorf("took %s of 2.5 s", took)
	}
}

func TestStreamsInTransitCountUntilTheyHaveArrived(t *testing.T) {
	clock := testkit.NewClock(epoch)
	b := balancer(t, config(&fleet{}, func(c *Config) { c.Clock = clock }))
	b.addDeparture(3)
	clock.Advance(transitTime / 2)
	b.addDeparture(4)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 7}, {transitTime / 2, 4}, {transitTime / 2, 0}} {
		clock.Advance(step.after)
		if m, err := b.GetLoad(t.Context(), nil); err != nil || int(m.GetInTransit()) != step.want {
			t.Errorf("after %s more: %d under way, want %d (%v)", step.after, m.GetInTransit(), step.want, err)
		}
	}
}

// names is a resolver with the addresses that a test sets.
type names struct{ hosts map[string][]string }

func (n *names) LookupHost(_ context.Context, host string) ([]string, error) {
	if hosts, ok := n.hosts[host]; ok {
		return hosts, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// peer serves the load of a fleet and returns its port on 127.0.0.1.
func peer(t *testing.T, instance string, f *fleet) (port string, stop func()) {
	t.Helper()
	b := balancer(t, config(f, func(c *Config) { c.Instance = instance }))
	lis := testkit.LoopbackListener(t)
	stop = rpctest.Serve(t, lis, rpc.ServerConfig{Service: "ads", Insecure: true, Policy: auth.Policy{Methods: auth.Anonymous()}},
		func(g *grpc.Server) { b.Register(g) })
	_, port, err := net.SplitHostPort(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, stop
}

func TestPeersAreAskedByNameAndByAddress(t *testing.T) {
	first, stopFirst := peer(t, "first", &fleet{streams: 7, ready: true})
	second, _ := peer(t, "second", &fleet{streams: 3})
	resolver := &names{hosts: map[string][]string{"one": {"127.0.0.1"}, "two": {"127.0.0.1"}}}
	b := balancer(t, config(&fleet{}, func(c *Config) {
		c.Peers, c.Resolver = []string{"one:" + first, "two:" + second, "127.0.0.1:" + second, "nobody:1", "127.0.0.1:1"}, resolver
	}))
	ask := func(want ...Load) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			got := b.ask(t.Context())
			slices.SortFunc(got, func(a, b Load) int { return strings.Compare(a.Instance, b.Instance) })
			if !slices.Equal(got, want) {
				return errors.New("other answers than wanted")
			}
			return nil
		})
	}
	one, two := Load{Instance: "first", Streams: 7, Ready: true}, Load{Instance: "second", Streams: 3}
	ask(one, two)
	delete(resolver.hosts, "one") // the name service fails: its last answer stays in use
	ask(one, two)
	resolver.hosts["two"] = nil // but the address is configured too
	ask(one, two)
	resolver.hosts["one"] = nil // the replica is gone from the name
	ask(two)
	if n := len(b.peers.Conns(t.Context())); n != 2 {
		t.Errorf("%d connections, want those to the second peer and to the dead address", n)
	}
	resolver.hosts["one"] = []string{"127.0.0.1"}
	stopFirst()
	ask(two)
}

// Whole rounds against real peers: peers that are not ready get no streams.
func TestRounds(t *testing.T) {
	for name, tc := range map[string]struct {
		peer *fleet
		own  bool
		want int
	}{
		"to a peer with fewer":                 {&fleet{streams: 20, ready: true}, true, 40},
		"not to one without configuration":     {&fleet{}, true, 0},
		"not to one with as many":              {&fleet{streams: 95, ready: true}, true, 0},
		"nothing when about to end oneself":    {&fleet{streams: 20, ready: true}, false, 0},
		"nothing to a peer that has even more": {&fleet{streams: 900, ready: true}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			port, _ := peer(t, "peer", tc.peer)
			f := &fleet{streams: 100, ready: tc.own}
			b := balancer(t, config(f, func(c *Config) { c.Peers, c.Period = []string{"127.0.0.1:" + port}, 400*time.Millisecond }))
			for range 4 {
				b.round(t.Context())
			}
			if moved := 100 - f.Streams(); moved != tc.want {
				t.Errorf("%d moved, want %d", moved, tc.want)
			}
			if got := testutil.ToFloat64(b.metrics.moved); got != float64(tc.want) {
				t.Errorf("counted %g", got)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	for name, peers := range map[string][]string{"without peers": nil, "with a peer": {"127.0.0.1:1"}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			b := balancer(t, config(&fleet{}, func(c *Config) { c.Peers = peers }))
			done := make(chan error)
			go func() { done <- b.Run(ctx) }()
			select {
			case err := <-done:
				t.Fatalf("ended early: %v", err)
			default:
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	balancer(t, config(&fleet{}, func(c *Config) { c.Registerer = registry }))
	families, err := registry.Gather()
	if err != nil || len(families) != 2 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
