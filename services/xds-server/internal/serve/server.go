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
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// Defaults of a Config.
const (
	DefaultMaxConnectionAge   = 30 * time.Minute
	DefaultOrderTimeout       = 5 * time.Second
	DefaultStallTimeout       = 30 * time.Second
	DefaultMaxSubscribedBytes = 16 << 20
	DefaultMaxNameBytes       = 4 << 10
	DefaultMaxOnDemandHosts   = 4096
	DefaultMaxUnsentBytes     = 256 << 20
	DefaultMaxResponseBytes   = 4 << 20
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
	// MaxOnDemandHosts bounds the virtual hosts that one stream may ask for by name; further ones are answered with "not found".
	MaxOnDemandHosts int
	// MaxUnsentBytes bounds what was handed to gRPC and the network has not taken yet, over all streams, and one identity may
	// have as much of it as is left. Streams beyond it wait, those that have a configuration longer than those that have none.
	MaxUnsentBytes int
	// MinStreams is how many streams any identity may have, MaxAddressStreams how many an address on the plaintext port
	// may.
	MinStreams, MaxAddressStreams int
	// MaxNamesBytes is what the names may take that all streams subscribe to and that are not their classes' own.
	MaxNamesBytes int
	// MaxResponseBytes is about where a response is cut, for types whose resources the client waits for one by one.
	MaxResponseBytes int
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
	// Debug answers Istio's debug types; nobody may ask for them if it is empty.
	Debug Debug
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
	maxOnDemandHosts   int
	maxResponseBytes   int
	rand               func() float64
	metrics            *metrics
	// traced is true if spans go somewhere.
	traced        bool
	reports       reports
	budget        budget
	settling      settleTracker
	chunks        chunkCache
	onDemandNames *onDemandMemory
	quotas        quotas
	refusals      refusals
	// standIns are described at stream.standIn.
	emptyEndpoints *store.Store
	// failing is what could not be built at the last Apply, by class; only Apply uses it.
	failing map[*plan.Class]string
	// draining is closed when the process is about to end.
	draining  chan struct{}
	drainOnce sync.Once

	subscribers subscribersIndex
	bans        bans
	debug       Debug

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
		instance: cfg.Instance, emptyEndpoints: store.New(), maxAge: orDefault(cfg.MaxConnectionAge, DefaultMaxConnectionAge),
		orderTimeout:       orDefault(cfg.OrderTimeout, DefaultOrderTimeout),
		stallTimeout:       orDefault(cfg.StallTimeout, DefaultStallTimeout),
		maxSubscribedBytes: orDefault(cfg.MaxSubscribedBytes, DefaultMaxSubscribedBytes),
		maxNameBytes:       orDefault(cfg.MaxNameBytes, DefaultMaxNameBytes),
		maxOnDemandHosts:   orDefault(cfg.MaxOnDemandHosts, DefaultMaxOnDemandHosts),
		maxResponseBytes:   orDefault(cfg.MaxResponseBytes, DefaultMaxResponseBytes),
		reports:            reports{gone: map[statusKey]struct{}{}, nodes: map[string][]*stream{}},
		budget:             budget{limit: int64(orDefault(cfg.MaxUnsentBytes, DefaultMaxUnsentBytes))},
		onDemandNames:      newOnDemandMemory(clock.Or(cfg.Clock)),
		debug:              cfg.Debug,
		rand:               cfg.Rand, draining: make(chan struct{}), streams: map[*stream]struct{}{},
		subscribers: subscribersIndex{byTopic: map[mesh.Topic]map[*stream]struct{}{}},
	}
	_, untraced := tracers.(noop.TracerProvider)
	s.traced = !untraced
	if s.rand == nil {
		s.rand = rand.Float64
	}
	s.metrics = newMetrics(cfg.Registerer, s)
	s.refusals = refusals{clock: s.clock, log: cfg.Log, metrics: s.metrics, notify: s.reports.notifier.Notify}
	s.quotas = quotas{
		clock: s.clock, accounts: map[string]*account{}, state: s.engine.State, refused: s.refusals.add,
		minStreams: orDefault(cfg.MinStreams, DefaultMinStreams), addresses: orDefault(cfg.MaxAddressStreams, DefaultMaxAddressStreams),
		maxNames: int64(orDefault(cfg.MaxNamesBytes, DefaultMaxNamesBytes)),
	}
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
func (s *Server) Apply(state *mesh.Snapshot, change *mesh.Change) {
	start := s.clock.Now()
	round := s.settling.beginRound(s.Streams())
	ctx, span := s.startRevision(state.Revision())
	defer span.End()
	n := s.engine.Apply(state, change, func() { s.reclassify(change.Topics) })
	s.metrics.revisions.Inc()
	s.metrics.applySeconds.Observe(s.clock.Now().Sub(start).Seconds())
	s.log.DebugContext(ctx, "revision applied", "sequence", state.Revision().GetSequence(), "changed", len(change.Keys), "resources", n)
	s.noteFailures()
	s.settling.responseAnswered(round)
	s.reports.notifier.Notify()
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

// Drain ends all streams, so that proxies go to another replica while this one still answers, and refuses new ones.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Run drains when ctx ends.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	s.Drain()
	return nil
}
