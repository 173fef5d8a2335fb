// Package servetest is the fixture of an xds-server under test: engine, ADS server and gRPC ports, without
// config-watcher. A test applies revisions to it and connects ADS clients.
package servetest

import (
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// Config of a Server. Translators are required.
type Config struct {
	Translators []plan.Translator
	// Log is nil for no log, Clock is nil for the machine's clock.
	Log   *slog.Logger
	Clock clock.Clock
	// Change edits the configuration of the ADS server.
	Change func(*serve.Config)
}

// Server is an xds-server under test.
type Server struct {
	ADS      *serve.Server
	Engine   *plan.Engine
	Registry *prometheus.Registry
	// Snapshot and Sequence are those of the last revision applied.
	Snapshot *mesh.Snapshot
	Sequence uint64
	// Conn leads to the plaintext port; nil if New was called.
	Conn *grpc.ClientConn
	// Stop closes Conn and the plaintext port and waits for its end. It may be called more than once.
	Stop func()

	t   testing.TB
	cfg Config
}

// New makes a server that listens nowhere and has no revision.
func New(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{Registry: prometheus.NewPedanticRegistry(), Snapshot: mesh.Empty(), t: t, cfg: cfg}
	var err error
	s.Engine, err = plan.NewEngine(plan.Config{
		Translators: cfg.Translators, Store: store.New(), Log: cfg.Log, Registerer: s.Registry, Clock: cfg.Clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	ads := serve.Config{Engine: s.Engine, Log: cfg.Log, Registerer: s.Registry, Clock: cfg.Clock, Instance: "test"}
	if cfg.Change != nil {
		cfg.Change(&ads)
	}
	if s.ADS, err = serve.New(ads); err != nil {
		t.Fatal(err)
	}
	return s
}

// Start makes a server with a plaintext port on a loopback address. The caller must call Stop.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s := New(t, cfg)
	lis := testkit.LoopbackListener(t)
	stop := s.Listen(lis, rpc.ServerConfig{Insecure: true, Policy: Policy(auth.Anonymous()), Registerer: s.Registry})
	var err error
	if s.Conn, err = grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	s.Stop = sync.OnceFunc(func() {
		_ = s.Conn.Close() // the test is over
		stop()
	})
	return s
}

// Policy allows ADS to the callers of a rule.
func Policy(rule auth.Rule) auth.Policy {
	return auth.Policy{"/envoy.service.discovery.v3.AggregatedDiscoveryService/*": rule}
}

// Listen serves ADS, and further services, on a listener until stop is called, which waits for the end.
func (s *Server) Listen(lis net.Listener, cfg rpc.ServerConfig, further ...func(grpc.ServiceRegistrar)) (stop func()) {
	s.t.Helper()
	cfg.Service, cfg.Log = "ads", s.cfg.Log
	return rpctest.Serve(s.t, lis, cfg, func(g *grpc.Server) {
		for _, register := range append(further, s.ADS.Register) {
			register(g)
		}
	}, grpc.ForceServerCodecV2(wire.Codec()))
}

// Apply applies the next revision.
func (s *Server) Apply(upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	s.Sequence++
	next, change := s.Snapshot.Apply(&configv1.Revision{Epoch: "test", Sequence: s.Sequence}, upserts, removed)
	s.Snapshot = next
	s.ADS.Apply(next, change)
}
