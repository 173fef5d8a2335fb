// Package balance keeps the proxies spread over the replicas of xds-server. Each replica asks the others for the number
// of their streams, and asks the clients of its own excess streams to reconnect. Where they reconnect to is up to the
// load balancer between them.
package balance

import (
	"cmp"
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
	"fairlead.dev/pkg/rpc"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
)

// Methods are those of the service on a gRPC server, for a policy.
const Methods = "/fairlead.xds.v1.ReplicaService/*"

const (
	// DefaultPeriod is the time between two rounds.
	DefaultPeriod = 5 * time.Second
	// transitTime is how long a stream whose client was asked to reconnect counts as in transit: about what a proxy
	// needs to reconnect.
	transitTime = 2 * time.Second
	// minInterval is about the least time between two requests to reconnect, maxRate the most streams per second.
	minInterval = 100 * time.Millisecond
	maxRate     = 200
)

// Fleet has the streams; serve.Server implements it.
type Fleet interface {
	// Streams is the number of open streams.
	Streams() int
	// Accepting reports whether new streams are served.
	Accepting() bool
	// Reconnect asks up to n clients to reconnect and returns how many it has asked.
	Reconnect(n int) int
}

// Config of a Balancer. Fleet, Instance, Log, Registerer and, if there are Peers, TLS or Insecure are required.
type Config struct {
	Fleet Fleet
	// Instance is unique for each run of the process: the replica recognises itself among its peers by it.
	Instance string
	// Peers are the replicas as host:port; this one may be among them. A name stands for all its addresses and is
	// looked up in every round. Without peers, no client is asked to reconnect.
	Peers []string
	// TLS is usually tlsconf.Client with the common identity of the replicas. Insecure allows plaintext.
	TLS      *tls.Config
	Insecure bool
	// Period is the time between two rounds, up to a fifth shorter or longer; 0 means DefaultPeriod.
	Period     time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
	// Resolver is net.DefaultResolver unless a test needs another.
	Resolver rpc.Resolver
}

// Balancer answers the peers' questions for this replica's load, and reduces the load if it is above the mean.
type Balancer struct {
	xdsv1.UnimplementedReplicaServiceServer

	cfg     Config
	peers   *rpc.Peers
	policy  *policy
	metrics metrics

	mu sync.Mutex
	// departures are the streams whose clients were asked to reconnect, oldest first.
	departures []departure
}

// departure is how many clients were asked to reconnect at one moment.
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
	cfg.Period = cmp.Or(cfg.Period, DefaultPeriod)
	cfg.Clock = clock.Or(cfg.Clock)
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	f := promauto.With(cfg.Registerer)
	return &Balancer{
		cfg: cfg, peers: newPeers(cfg), policy: newPolicy(),
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

// Register adds the service to a gRPC server, whose policy must admit only the replicas.
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

// Run balances until ctx ends. It never fails: a peer that does not answer does not count.
func (b *Balancer) Run(ctx context.Context) error {
	defer b.peers.Close()
	if len(b.cfg.Peers) == 0 {
		<-ctx.Done()
		return nil
	}
	next := b.cfg.Clock.Now().Add(time.Duration(b.cfg.Rand() * float64(b.cfg.Period))) // replicas that start together ask one after the other
	for b.waitUntil(ctx, next) {
		next = b.cfg.Clock.Now().Add(time.Duration((0.8 + 0.4*b.cfg.Rand()) * float64(b.cfg.Period)))
		b.round(ctx)
	}
	return nil
}

// round asks the peers and gives away excess streams in the first half of the period. In the second half they
// reconnect.
func (b *Balancer) round(ctx context.Context) {
	answers := b.ask(ctx)
	v := b.policy.decide(b.load(), answers)
	b.metrics.peers.Set(float64(v.replicas))
	window := b.cfg.Period / 2
	if v.excess = min(v.excess, int(maxRate*window.Seconds())+1); v.excess == 0 {
		return
	}
	moved := b.giveAway(ctx, v, window)
	b.policy.streamsMoved(moved)
	b.metrics.moved.Add(float64(moved))
	b.cfg.Log.Info("streams asked to move to other replicas", "moved", moved, "excess", v.excess, "share", int(v.share), "replicas",
		v.replicas)
}

// giveAway asks clients to reconnect, one or a few at a time, at random moments spread over the window. It stops when
// the replica is down to the mean, also if streams end for other reasons.
func (b *Balancer) giveAway(ctx context.Context, v decision, window time.Duration) (moved int) {
	start, steps := b.cfg.Clock.Now(), max(1, min(v.excess, int(window/minInterval)))
	for i := range steps {
		at := start.Add(time.Duration((float64(i) + b.cfg.Rand()) * float64(window) / float64(steps)))
		if !b.waitUntil(ctx, at) {
			return moved
		}
		n := min(v.excess*(i+1)/steps-v.excess*i/steps, b.cfg.Fleet.Streams()-v.target)
		if n <= 0 {
			continue
		}
		n = b.cfg.Fleet.Reconnect(n)
		b.addDeparture(n)
		moved += n
	}
	return moved
}

// waitUntil waits for a moment; it returns false if ctx ends before.
func (b *Balancer) waitUntil(ctx context.Context, at time.Time) bool {
	timer := b.cfg.Clock.NewTimer(at.Sub(b.cfg.Clock.Now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return ctx.Err() == nil
	}
}

func (b *Balancer) addDeparture(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.departures = append(b.departures, departure{at: b.cfg.Clock.Now(), n: n})
}

func (b *Balancer) inTransit() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := b.cfg.Clock.Now().Add(-transitTime)
	for len(b.departures) > 0 && !b.departures[0].at.After(since) {
		b.departures = b.departures[1:]
	}
	n := 0
	for _, d := range b.departures {
		n += d.n
	}
	return n
}
