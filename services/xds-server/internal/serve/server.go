// Package serve speaks ADS, delta and state of the world, with go-control-plane's stream loops and this package's own cache behind them.
//
// Every stream has a loop and a cache object of its own. The cache object is told by its class what may have changed and answers the open
// requests from the class's snapshot: nothing is built, marshalled or compared per stream.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/replica"
)

// Defaults of a Config.
const (
	DefaultMaxConnectionAge   = 30 * time.Minute
	DefaultOrderTimeout       = 5 * time.Second
	DefaultStallTimeout       = 30 * time.Second
	DefaultMaxSubscribedBytes = 16 << 20
	DefaultMaxNameBytes       = 4 << 10
)

// Config of a Server. Engine, Log, Registerer and Instance are required.
type Config struct {
	Engine     *plan.Engine
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// TracerProvider for spans; nil means none.
	TracerProvider trace.TracerProvider
	Clock          clock.Clock
	// Instance names this process in statuses.
	Instance string
	// MaxConnectionAge, give or take a tenth, is how long a stream lives before it is asked to reconnect, so that proxies spread over
	// replicas. Negative means for ever.
	MaxConnectionAge time.Duration
	// OrderTimeout bounds how long an update waits for the acknowledgement of what goes before it.
	OrderTimeout time.Duration
	// StallTimeout closes a stream whose client takes no data for that long.
	StallTimeout time.Duration
	// MaxSubscribedBytes and MaxNameBytes bound the names that one stream may subscribe to.
	MaxSubscribedBytes, MaxNameBytes int
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Server serves ADS. It is safe for concurrent use.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	engine             *plan.Engine
	log                *slog.Logger
	tracer             trace.Tracer
	clock              clock.Clock
	instance           string
	maxAge             time.Duration
	orderTimeout       time.Duration
	stallTimeout       time.Duration
	maxSubscribedBytes int
	maxNameBytes       int
	rand               func() float64
	metrics            *metrics
	// changed is notified when some proxy's status may be another one.
	changed tlsconf.Notifier
	// draining is closed when the process is about to end.
	draining  chan struct{}
	drainOnce sync.Once

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// New checks the configuration.
func New(cfg Config) (*Server, error) {
	if cfg.Engine == nil || cfg.Log == nil || cfg.Registerer == nil || cfg.Instance == "" {
		return nil, errors.New("serve: Engine, Log, Registerer and Instance are required")
	}
	tracers := cfg.TracerProvider
	if tracers == nil {
		tracers = noop.NewTracerProvider()
	}
	s := &Server{
		engine: cfg.Engine, log: cfg.Log, tracer: tracers.Tracer("fairlead.dev/services/xds-server/serve"), clock: clock.Or(cfg.Clock),
		instance: cfg.Instance, maxAge: orDefault(cfg.MaxConnectionAge, DefaultMaxConnectionAge),
		orderTimeout:       orDefault(cfg.OrderTimeout, DefaultOrderTimeout),
		stallTimeout:       orDefault(cfg.StallTimeout, DefaultStallTimeout),
		maxSubscribedBytes: orDefault(cfg.MaxSubscribedBytes, DefaultMaxSubscribedBytes),
		maxNameBytes:       orDefault(cfg.MaxNameBytes, DefaultMaxNameBytes),
		rand:               cfg.Rand, draining: make(chan struct{}), streams: map[*stream]struct{}{},
	}
	if s.rand == nil {
		s.rand = rand.Float64
	}
	s.metrics = newMetrics(cfg.Registerer, s)
	return s, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Apply brings every proxy to a later state of the mesh. One call at a time.
func (s *Server) Apply(state *replica.State, change *replica.Change) {
	start := s.clock.Now()
	ctx, span := s.startRevision(state.Revision())
	defer span.End()
	n := s.engine.Apply(state, change, func() { s.regroup(state, change.Topics) })
	s.metrics.revisions.Inc()
	s.metrics.applySeconds.Observe(s.clock.Now().Sub(start).Seconds())
	s.log.DebugContext(ctx, "revision applied", "sequence", state.Revision().GetSequence(), "changed", len(change.Keys), "resources", n)
	s.changed.Notify()
}

// regroup moves the streams whose proxies have become another class.
func (s *Server) regroup(state *replica.State, touched replica.Topics) {
	var group errgroup.Group
	group.SetLimit(8)
	for _, st := range s.all() {
		group.Go(func() error {
			st.regroup(state, touched)
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
}

func (s *Server) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := make([]*stream, 0, len(s.streams))
	for st := range s.streams {
		streams = append(streams, st)
	}
	return streams
}

// Changed is closed at the next change of some proxy's status. Take it before Statuses.
func (s *Server) Changed() <-chan struct{} { return s.changed.Changed() }

// Served returns the revision that is served from; nil before the first.
func (s *Server) Served() *configv1.Revision { return s.engine.Served() }

// Statuses lists the connected proxies, sorted by node id. Of several streams of one node the newest counts.
func (s *Server) Statuses() []*configv1.ProxyStatus {
	byNode := map[string]*configv1.ProxyStatus{}
	for _, st := range s.all() {
		status := st.status()
		if status == nil {
			continue
		}
		if held, ok := byNode[status.GetNodeId()]; !ok || held.GetConnectedAt().AsTime().Before(status.GetConnectedAt().AsTime()) {
			byNode[status.GetNodeId()] = status
		}
	}
	statuses := make([]*configv1.ProxyStatus, 0, len(byNode))
	for _, status := range byNode {
		statuses = append(statuses, status)
	}
	slices.SortFunc(statuses, func(a, b *configv1.ProxyStatus) int { return strings.Compare(a.GetNodeId(), b.GetNodeId()) })
	return statuses
}

// Drain ends all streams, so that proxies go to another replica while this one still answers, and refuses new ones.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Run drains when ctx ends.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	s.Drain()
	return nil
}
