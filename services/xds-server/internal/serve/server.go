package serve

import (
	"cmp"
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
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/ondemand"
	"fairlead.dev/services/xds-server/internal/serve/quota"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// Defaults of a Config.
const (
	DefaultMaxStreamAge       = 30 * time.Minute
	DefaultOrderTimeout       = 5 * time.Second
	DefaultStallTimeout       = 30 * time.Second
	DefaultMaxSubscribedBytes = 16 << 20
	DefaultMaxNameBytes       = 4 << 10
	DefaultMaxOnDemandHosts   = 4096
	DefaultMaxUnsentBytes     = 256 << 20
	DefaultMaxResponseBytes   = 4 << 20
	DefaultMinStreams         = quota.DefaultMinStreams
	DefaultMaxAddressStreams  = quota.DefaultMaxAddressStreams
)

// Config of a Server. Engine, Log, Registerer and Instance are required.
type Config struct {
	Engine     *plan.Engine
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// TracerProvider makes spans; nil means no tracing.
	TracerProvider trace.TracerProvider
	Clock          clock.Clock
	// Instance names this process in the statuses of proxies.
	Instance string
	// MaxConnectionAge is how long a stream lives before its client is asked to reconnect, so that proxies spread over
	// the replicas. Each stream takes a random age up to a tenth shorter or longer. Negative means no limit.
	MaxConnectionAge time.Duration
	// OrderTimeout bounds how long a response waits for the ACK of the types that must go before it (order.go).
	OrderTimeout time.Duration
	// StallTimeout is how long a client may leave a response unread before its stream is closed.
	StallTimeout time.Duration
	// MaxSubscribedBytes bounds the names that one stream subscribes to, MaxNameBytes the length of one name.
	MaxSubscribedBytes, MaxNameBytes int
	// MaxOnDemandHosts bounds the virtual hosts that one stream subscribes to by name; further ones are answered with
	// "not found".
	MaxOnDemandHosts int
	// MaxUnsentBytes bounds the bytes of all streams that were handed to gRPC and that the network has not taken yet.
	// One identity may have as many of them as are left for the others. Streams beyond the limit wait their turn;
	// streams without a first configuration go before streams that have one (quota.UnsentBytes).
	MaxUnsentBytes int
	// MinStreams is how many streams any identity may have, MaxAddressStreams how many one address on the plaintext
	// port may have.
	MinStreams, MaxAddressStreams int
	// MaxNamesBytes bounds the memory of the names that all streams subscribe to and that their classes do not list.
	MaxNamesBytes int
	// MaxResponseBytes is about where a response is split, for types whose resources the client awaits one by one.
	MaxResponseBytes int
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
	// Trust is told which generation of the trust bundle agents have acknowledged; nil means that nobody asks.
	Trust *acks.Ledger
	// Debug answers Istio's debug types; if it is empty, nobody may ask for them.
	Debug Debug
}

// Server serves ADS. It is safe for concurrent use.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	engine       *plan.Engine
	log          *slog.Logger
	tracer       trace.Tracer
	clock        clock.Clock
	instance     string
	maxAge       time.Duration
	stallTimeout time.Duration
	limits       subscription.Limits
	rand         func() float64
	metrics      *metrics
	// traced is false if the tracer provider is the no-op one: no spans of pushes are made then.
	traced        bool
	reports       reports
	unsent        *quota.UnsentBytes
	answers       answerTracker
	chunks        wire.Chunks
	onDemandNames *ondemand.Memory
	quotas        *quota.Quotas
	refusals      *quota.Refusals
	// emptyEndpoints holds the empty ClusterLoadAssignments that subscriptions send.
	emptyEndpoints *store.Store
	// failing holds the build errors of each class at the last Apply; only Apply uses it.
	failing map[*plan.Class]string
	// draining is closed when the process is about to end.
	draining  chan struct{}
	drainOnce sync.Once

	subscribers subscribersIndex
	bans        bans
	trust       *acks.Ledger
	bundles     acks.Bundles
	debug       Debug

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// New checks the configuration and makes a server without a snapshot: streams are refused until the first Apply.
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
		instance: cfg.Instance, emptyEndpoints: store.New(), maxAge: cmp.Or(cfg.MaxConnectionAge, DefaultMaxStreamAge),
		stallTimeout: cmp.Or(cfg.StallTimeout, DefaultStallTimeout),
		limits: subscription.Limits{
			OrderTimeout:       cmp.Or(cfg.OrderTimeout, DefaultOrderTimeout),
			MaxSubscribedBytes: cmp.Or(cfg.MaxSubscribedBytes, DefaultMaxSubscribedBytes),
			MaxNameBytes:       cmp.Or(cfg.MaxNameBytes, DefaultMaxNameBytes),
			MaxOnDemandHosts:   cmp.Or(cfg.MaxOnDemandHosts, DefaultMaxOnDemandHosts),
			MaxResponseBytes:   cmp.Or(cfg.MaxResponseBytes, DefaultMaxResponseBytes),
		},
		reports:       reports{dirty: map[*stream]struct{}{}, gone: map[ondemand.Proxy]struct{}{}, nodes: map[string][]*stream{}},
		unsent:        quota.NewUnsentBytes(cmp.Or(cfg.MaxUnsentBytes, DefaultMaxUnsentBytes)),
		onDemandNames: ondemand.New(clock.Or(cfg.Clock)),
		debug:         cfg.Debug,
		rand:          cfg.Rand, draining: make(chan struct{}), streams: map[*stream]struct{}{},
		subscribers: subscribersIndex{byTopic: map[mesh.Topic]map[*stream]struct{}{}},
	}
	_, untraced := tracers.(noop.TracerProvider)
	s.traced = !untraced
	if s.rand == nil {
		s.rand = rand.Float64
	}
	if s.trust = cfg.Trust; s.trust == nil {
		s.trust = acks.New()
	}
	s.metrics = newMetrics(cfg.Registerer, s)
	s.refusals = quota.NewRefusals(s.clock, cfg.Log, s.reports.notifier.Notify)
	s.quotas = quota.New(quota.Config{
		Clock: s.clock, State: s.engine.State, Refused: s.noteRefusal,
		MinStreams: cfg.MinStreams, MaxAddressStreams: cfg.MaxAddressStreams, MaxNamesBytes: cfg.MaxNamesBytes,
	})
	return s, nil
}

// Apply brings every proxy to a newer snapshot of the mesh. The config source calls it for each revision, one call at a
// time. It returns when all classes are rebuilt and the streams have been told; responses may still wait (AllAnswered,
// MostAnswered).
func (s *Server) Apply(state *mesh.Snapshot, change *mesh.Change) {
	s.apply(state, change, s.answers.beginRound(s.Streams()))
}

// ApplyEndpoints is Apply for a snapshot that differs from the last one in endpoints and Workloads alone. The config
// source calls it in place of Apply, also for a state that has no revision of its own.
func (s *Server) ApplyEndpoints(state *mesh.Snapshot, change *mesh.Change) {
	s.apply(state, change, s.answers.beginEndpoints())
}

// apply does the work of Apply, of which the answer tracker was told.
func (s *Server) apply(state *mesh.Snapshot, change *mesh.Change, update counted) {
	start := s.clock.Now()
	ctx, span := s.startRevision(state.Revision())
	defer span.End()
	n := s.engine.Apply(state, change, func() { s.reclassify(change.Topics) })
	s.metrics.revisions.Inc()
	s.metrics.applySeconds.Observe(s.clock.Now().Sub(start).Seconds())
	s.log.DebugContext(ctx, "revision applied", "sequence", state.Revision().GetSequence(), "changed", len(change.Keys), "resources", n)
	s.noteFailures()
	s.answers.responseAnswered(update)
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

// Run waits until ctx ends and then drains.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	s.Drain()
	return nil
}
