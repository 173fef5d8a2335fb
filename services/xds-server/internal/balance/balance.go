// Package balance keeps the proxies spread over the replicas of xds-server: each replica asks the others how many streams they have, and
// asks those of its own streams that are too many to move. Where they go is up to whoever balances connections.
package balance

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
)

// Methods are the service's on a gRPC server, as a policy names them.
const Methods = "/fairlead.xds.v1.ReplicaService/*"

const (
	// DefaultPeriod is the time between two rounds.
	DefaultPeriod = 5 * time.Second
	// arrival is how long a stream that was asked to move counts as under way: about what a proxy needs to reconnect.
	arrival = 2 * time.Second
	// step is about how far apart streams are asked to move, maxRate how many of them are per second.
	step    = 100 * time.Millisecond
	maxRate = 200
)

// Fleet has the streams; serve.Server does.
type Fleet interface {
	// Streams is how many are open.
	Streams() int
	// Accepting reports whether new ones are served.
	Accepting() bool
	// Move asks up to n streams to reconnect and returns how many it has asked.
	Reconnect(n int) int
}

// Config of a Balancer. Fleet, Instance, Log, Registerer and, if there are Peers, TLS or Insecure are required.
type Config struct {
	Fleet Fleet
	// Instance is unique per process run: the replica knows itself among its peers by it.
	Instance string
	// Peers are host:port of the replicas, this one among them or not. A name stands for all its addresses, looked up every round. Without
	// any, nothing is ever moved.
	Peers []string
	// TLS is usually tlsconf.Client with the replicas' common identity. Insecure must be said.
	TLS      *tls.Config
	Insecure bool
	// Period, give or take a fifth, is the time between two rounds; 0 means DefaultPeriod.
	Period     time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
	// Resolver is net.DefaultResolver unless a test needs another.
	Resolver interface {
		LookupHost(ctx context.Context, host string) ([]string, error)
	}
}

// Balancer tells the own load and moves what is too much of it.
type Balancer struct {
	xdsv1.UnimplementedReplicaServiceServer

	cfg     Config
	peers   *peers
	judge   *judge
	metrics metrics

	mu sync.Mutex
	// left are streams that were asked to move, oldest first.
	departures []departure
}

// departure is how many streams were asked to move at one moment.
type departure struct {
	at time.Time
	n  int
}

type metrics struct {
	moved prometheus.Counter
	peers prometheus.Gauge
}

// New checks the configuration; Run does the work.
func New(cfg Config) (*Balancer, error) {
	switch {
	case cfg.Fleet == nil || cfg.Instance == "" || cfg.Log == nil || cfg.Registerer == nil:
		return nil, errors.New("balance: Fleet, Instance, Log and Registerer are required")
	case len(cfg.Peers) > 0 && (cfg.TLS == nil) != cfg.Insecure:
		return nil, errors.New("balance: with Peers, either TLS or Insecure is required")
	case cfg.Period < 0:
		return nil, errors.New("balance: Period must not be negative")
	}
	if cfg.Period == 0 {
		cfg.Period = DefaultPeriod
	}
	cfg.Clock = clock.Or(cfg.Clock)
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	f := promauto.With(cfg.Registerer)
	return &Balancer{
		cfg: cfg, peers: newPeers(cfg), judge: newJudge(),
		metrics: metrics{
			moved: f.NewCounter(prometheus.CounterOpts{
				Name: "fairlead_xds_server_moved_streams_total",
				Help: "ADS streams that were asked to reconnect because other replicas had fewer.",
			}),
			peers: f.NewGauge(prometheus.GaugeOpts{
				Name: "fairlead_xds_server_balanced_replicas",
				Help: "Replicas that the proxies are spread over as this one sees it, itself included.",
			}),
		},
	}, nil
}

// Register adds the service to a gRPC server, whose policy must admit the replicas only.
func (b *Balancer) Register(g grpc.ServiceRegistrar) { xdsv1.RegisterReplicaServiceServer(g, b) }

// GetLoad implements the service.
func (b *Balancer) GetLoad(context.Context, *xdsv1.GetLoadRequest) (*xdsv1.GetLoadResponse, error) {
	own := b.load()
	return &xdsv1.GetLoadResponse{
		Instance: own.Instance, Ready: own.Ready,
		Streams: uint32(own.Streams), InTransit: uint32(own.InTransit), //nolint:gosec // counts are small
	}, nil
}

func (b *Balancer) load() Load {
	return Load{Instance: b.cfg.Instance, Streams: b.cfg.Fleet.Streams(), InTransit: b.inTransit(), Ready: b.cfg.Fleet.Accepting()}
}

// Run balances until ctx ends. It never fails: who does not answer does not count.
func (b *Balancer) Run(ctx context.Context) error {
	defer b.peers.close()
	if len(b.cfg.Peers) == 0 {
		<-ctx.Done()
		return nil
	}
	next := b.cfg.Clock.Now().Add(time.Duration(b.cfg.Rand() * float64(b.cfg.Period))) // replicas that start together ask one after the other
	for b.until(ctx, next) {
		next = b.cfg.Clock.Now().Add(time.Duration((0.8 + 0.4*b.cfg.Rand()) * float64(b.cfg.Period)))
		b.round(ctx)
	}
	return nil
}

// round asks the peers and moves what is too much, in the first half of the period: the second is for the streams to arrive.
func (b *Balancer) round(ctx context.Context) {
	answers := b.peers.ask(ctx)
	v := b.judge.decide(b.load(), answers)
	b.metrics.peers.Set(float64(v.replicas))
	window := b.cfg.Period / 2
	if v.move = min(v.move, int(maxRate*window.Seconds())+1); v.move == 0 {
		return
	}
	moved := b.giveAway(ctx, v, window)
	b.judge.moved(moved)
	b.metrics.moved.Add(float64(moved))
	b.cfg.Log.Info("streams asked to move to other replicas", "moved", moved, "excess", v.move, "share", int(v.share), "replicas", v.replicas)
}

// move gives streams away one by one, or a few at a time, at random moments spread over the window. It stops at the share, whoever leaves.
func (b *Balancer) giveAway(ctx context.Context, v verdict, window time.Duration) (moved int) {
	start, steps := b.cfg.Clock.Now(), max(1, min(v.move, int(window/step)))
	for i := range steps {
		at := start.Add(time.Duration((float64(i) + b.cfg.Rand()) * float64(window) / float64(steps)))
		if !b.until(ctx, at) {
			return moved
		}
		n := min(v.move*(i+1)/steps-v.move*i/steps, b.cfg.Fleet.Streams()-v.target)
		if n <= 0 {
			continue
		}
		n = b.cfg.Fleet.Reconnect(n)
		b.depart(n)
		moved += n
	}
	return moved
}

// until waits for a moment; false if ctx ended before it.
func (b *Balancer) until(ctx context.Context, at time.Time) bool {
	timer := b.cfg.Clock.NewTimer(at.Sub(b.cfg.Clock.Now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return ctx.Err() == nil
	}
}

func (b *Balancer) depart(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.departures = append(b.departures, departure{at: b.cfg.Clock.Now(), n: n})
}

func (b *Balancer) inTransit() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := b.cfg.Clock.Now().Add(-arrival)
	for len(b.departures) > 0 && !b.departures[0].at.After(since) {
		b.departures = b.departures[1:]
	}
	n := 0
	for _, d := range b.departures {
		n += d.n
	}
	return n
}
