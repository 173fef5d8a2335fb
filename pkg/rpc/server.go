// Package rpc makes the gRPC servers and clients of all services. NewServer returns a server that authenticates a call
// before it decodes a message, applies a Policy (pkg/auth), bounds connections, calls and memory, recovers from panics,
// and has metrics, logs and traces; Serve runs it. Dial returns a client. Reopener and AskToReconnect are for long
// streams.
package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	authmw "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/validator"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"fairlead.dev/pkg/auth"
)

const (
	connectionBuffer = 4 << 10
	serverWindow     = 256 << 10
)

// ServerConfig describes a server. Service, Log, Registerer and either TLS or Insecure are required.
type ServerConfig struct {
	// Service names the server in logs.
	Service    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// TracerProvider for spans; nil means OpenTelemetry's global one, which telemetry.Setup sets.
	TracerProvider trace.TracerProvider

	// TLS is usually tlsconf.Server. Insecure must be set for unix sockets and for ports that are plaintext on purpose.
	TLS      *tls.Config
	Insecure bool
	// PeerUIDs admits only processes of these users on a unix socket, by the kernel's account of the peer. Empty admits
	// all.
	PeerUIDs []uint32

	// Authenticator proves who calls; Policy says who may. A nil Authenticator is allowed only if every rule is
	// auth.Anonymous. NewServer adds the standard health service to the policy as anonymous.
	Authenticator auth.Authenticator
	Policy        auth.Policy

	// Health is the standard health service's state; nil means always serving.
	Health *health.Server

	// MaxRecvBytes bounds one message, MaxHeaderBytes the headers of one call. 0 means the default.
	MaxRecvBytes   int
	MaxHeaderBytes uint32
	// MaxConnections and MaxConcurrentStreams (per connection) refuse more than that. 0 means the default.
	MaxConnections       int
	MaxConcurrentStreams uint32
	// MaxUnauthenticated and MaxUnauthenticatedPerAddress bound the unauthenticated connections: those whose client has
	// neither shown a certificate nor made a call that was authenticated. One more makes the oldest of the address with
	// the most go if its own has fewer, and waits for some seconds otherwise. A connection that is still
	// unauthenticated after UnauthenticatedTimeout is closed. 0 means the default. They have no effect if Authenticator
	// is nil.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int
	UnauthenticatedTimeout                           time.Duration
	// MaxConnectionsPerIdentity and MaxCallsPerIdentity (at once) bound what one identity has, however many workloads
	// share it. 0 means a quarter of MaxConnections, and as many calls as MaxConnections. If Authenticator is nil, each
	// address counts as an identity, and only MaxConcurrentStreams bounds its calls. With PeerUIDs all connections
	// count for one identity.
	MaxConnectionsPerIdentity, MaxCallsPerIdentity int
	// MaxIdentityBytes bounds the memory of one identity's messages that have begun and that no handler has received
	// yet. The server stops reading from a connection that needs more, for up to 10 s, until there is room. All
	// identities together have four times that. 0 means two messages of MaxRecvBytes and a little. An unauthenticated
	// connection has 16 KiB.
	MaxIdentityBytes int
	// MessageTimeout closes a connection if a message is not complete that long after its first byte, plus a second for
	// each 256 KiB of its length. 0 means the default.
	MessageTimeout time.Duration

	// The server pings after KeepaliveTime without a frame, and closes the connection after KeepaliveTimeout without an
	// answer. 0 means the defaults.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// KeepaliveMinTime is how often clients may ping. 0 means the default.
	KeepaliveMinTime time.Duration
	// MaxConnectionIdle closes connections without calls. Default 5 min.
	MaxConnectionIdle time.Duration
	// MaxConnectionAge asks clients to reconnect after about this long, so that they show a valid certificate or token
	// again; open streams get MaxConnectionAgeGrace to end and are then cut. 0 means the defaults, and never if
	// PeerUIDs are given; a negative age means never. In any case a connection is closed when the certificate that
	// opened it expires.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

// NewServer returns a server with the standard health service. opts are applied last.
func NewServer(cfg ServerConfig, opts ...grpc.ServerOption) (*grpc.Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("gRPC server %s: %w", cfg.Service, err)
	}
	m, err := newServerMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("gRPC server %s: %w", cfg.Service, err)
	}
	g := newGate(cfg.Authenticator, cfg.Policy, cfg.Log, m)
	rec := recoveryOption(cfg.Log, m.panics)

	all := []grpc.ServerOption{
		grpc.Creds(newConnLimit(&cfg, m)),
		grpc.InTapHandle(g.tap),
		grpc.StatsHandler(callStats{}),
		// A service holds a connection for each of many peers that mostly send little. gRPC's default buffers, 32 KiB
		// each way, would be most of the memory of an idle connection.
		grpc.ReadBufferSize(connectionBuffer),
		// Static windows: to adapt them, gRPC would answer every message after a pause with a ping, which doubles the
		// cost of a message on streams that send little.
		grpc.StaticStreamWindowSize(serverWindow),
		grpc.StaticConnWindowSize(serverWindow),
		grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(tracerProvider(cfg.TracerProvider)),
			otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()),
			otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		)),
		// The first is outermost. Recovery is the innermost, so that a handler's panic is logged and counted as the
		// error that the caller gets, and also the outermost, for panics of interceptors.
		grpc.ChainUnaryInterceptor(
			recovery.UnaryServerInterceptor(rec),
			m.grpc.UnaryServerInterceptor(),
			logUnary(cfg.Log),
			authmw.UnaryServerInterceptor(g.admitted),
			validator.UnaryServerInterceptor(),
			recovery.UnaryServerInterceptor(rec),
		),
		grpc.ChainStreamInterceptor(
			recovery.StreamServerInterceptor(rec),
			m.grpc.StreamServerInterceptor(),
			logStream(cfg.Log),
			authmw.StreamServerInterceptor(g.admitted),
			validator.StreamServerInterceptor(),
			recovery.StreamServerInterceptor(rec),
		),
		grpc.MaxRecvMsgSize(cfg.MaxRecvBytes),
		grpc.MaxHeaderListSize(cfg.MaxHeaderBytes),
		grpc.MaxConcurrentStreams(cfg.MaxConcurrentStreams),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: cfg.KeepaliveMinTime, PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: cfg.KeepaliveTime, Timeout: cfg.KeepaliveTimeout,
			MaxConnectionIdle: cfg.MaxConnectionIdle,
			MaxConnectionAge:  cfg.MaxConnectionAge, MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
		}),
	}
	s := grpc.NewServer(append(all, opts...)...)
	healthpb.RegisterHealthServer(s, cfg.Health)
	return s, nil
}

func (c *ServerConfig) complete() error {
	switch {
	case c.Service == "" || c.Log == nil || c.Registerer == nil:
		return errors.New("the fields Service, Log and Registerer are required")
	case c.TLS == nil && !c.Insecure:
		return errors.New("TLS is not configured and Insecure is not set")
	case c.TLS != nil && c.Insecure:
		return errors.New("TLS is configured and Insecure is set: choose one")
	}
	policy := auth.Policy{}
	for method, rule := range c.Policy {
		policy[method] = rule
		if c.Authenticator == nil && !auth.IsAnonymous(rule) {
			return fmt.Errorf("policy for %q needs an authenticator and none is configured", method)
		}
	}
	healthService := "/" + healthpb.Health_ServiceDesc.ServiceName + "/*"
	if _, ok := policy[healthService]; !ok {
		policy[healthService] = auth.Anonymous()
	}
	c.Policy = policy
	if err := policy.Validate(); err != nil {
		return err
	}
	c.Health = cmp.Or(c.Health, health.NewServer())
	orDefault(&c.KeepaliveTime, DefaultKeepaliveTime)
	orDefault(&c.KeepaliveTimeout, DefaultKeepaliveTimeout)
	orDefault(&c.KeepaliveMinTime, DefaultKeepaliveMinTime)
	orDefault(&c.MaxConnectionIdle, 5*time.Minute)
	return c.completeLimits()
}

func (c *ServerConfig) transport() credentials.TransportCredentials {
	if c.TLS != nil {
		return credentials.NewTLS(c.TLS)
	}
	return insecure.NewCredentials()
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func tracerProvider(tp trace.TracerProvider) trace.TracerProvider {
	if tp == nil {
		return otel.GetTracerProvider()
	}
	return tp
}

// Serve serves on lis until ctx ends. It then lets running calls finish for up to grace, closes the rest, and returns
// nil. It closes lis.
func Serve(ctx context.Context, s *grpc.Server, lis net.Listener, grace time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(lis) }()
	select {
	case err := <-failed:
		s.Stop()
		return fmt.Errorf("serve gRPC on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() { s.GracefulStop(); close(stopped) }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		s.Stop()
		<-stopped
	}
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", lis.Addr(), err)
	}
	return nil
}

// serverMetrics are shared by all servers on one registry.
type serverMetrics struct {
	grpc     *grpcprom.ServerMetrics
	panics   prometheus.Counter
	refused  *prometheus.CounterVec
	rejected *prometheus.CounterVec
}

func newServerMetrics(reg prometheus.Registerer) (*serverMetrics, error) {
	var errs [4]error
	m := &serverMetrics{}
	m.grpc, errs[0] = register(reg, grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()))
	m.panics, errs[1] = register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_rpc_server_panics_total",
		Help: "Panics in gRPC handlers that were turned into INTERNAL errors.",
	}))
	m.refused, errs[2] = register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_rpc_server_calls_refused_total",
		Help: "gRPC calls refused before their message was read, by status code.",
	}, []string{"code"}))
	m.rejected, errs[3] = register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_rpc_server_connections_rejected_total",
		Help: "Connections refused or closed by the server, by reason: limit, peer (foreign user on a unix socket), handshake, refusals (too " +
			"many " +
			"refused calls), address (too many that have not authenticated), unauthenticated (for too long), identity (too many of " +
			"one), bytes (no room for unfinished messages), message (unfinished for too long), expired (certificate).",
	}, []string{"reason"}))
	// Values are there from the start: a rate does not count the event with which a series begins.
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted} {
		m.refused.WithLabelValues(code.String())
	}
	for _, reason := range []string{"limit", "peer", "handshake", "refusals", "address", "unauthenticated", "identity", "bytes", "message",
		"expired"} {
		m.rejected.WithLabelValues(reason)
	}
	return m, errors.Join(errs[:]...)
}

// register registers a collector, or returns an equal one that is registered already, so that several servers or
// clients of a program share one.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}
