package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/admission"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/issuance"
	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/servercert"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/store"
	"fairlead.dev/services/ca/internal/trustbundle"
)

const (
	// tokenAudience is what callers' tokens are made for, as in Istio.
	tokenAudience = "istio-ca"
	// adminAudience is what administrators' tokens are made for.
	adminAudience = "fairlead"
	// maxMessageBytes holds a request with the largest CSR (csr.MaxPEMBytes) and its metadata, which names a workload
	// at most, or the token of a forwarded request (maxHeaderBytes).
	maxMessageBytes = 25 << 10
	// maxHeaderBytes is several times that of a service account's token. A watch holds its headers for as long as it is
	// open.
	maxHeaderBytes = 8 << 10
	// maxConnections keeps all of them, at about 40 KiB each, and every bundle watch below the memory that
	// deploy/kustomize/base/ca gives the process. Fairlead's agents close theirs after the answer.
	maxConnections = 2000
	// maxIdentityConnections holds a Deployment of a thousand Pods of one service account that start together, and
	// leaves two connections in five to everybody else.
	maxIdentityConnections = maxConnections * 3 / 5
	// maxStreams of one connection is what a node's proxy that asks for many workloads at once makes use of, and little
	// enough that one connection costs no more than about 1 MiB.
	maxStreams = 32
	// maxIdle closes the connections of Istio's agents, which keep theirs for the next renewal in half a day, so that a
	// whole mesh may start one after another.
	maxIdle = 30 * time.Second
	// rootWarning is how long before its end the root is warned about.
	rootWarning = 90 * 24 * time.Hour
)

// Deps are what a test may want to replace. Log and Registry are required.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
	Clock    clock.Clock
}

// Server is an opened ca: its root is loaded, its own certificate issued, its ports bound.
type Server struct {
	cfg       *config
	deps      Deps
	grpc      *grpc.Server
	grpcLis   net.Listener
	ops       *ops.Server
	opsLis    net.Listener
	ownCert   *servercert.Source
	bundle    *trustbundle.Manager
	publisher *trustbundle.Publisher
	gate      *admission.Gate
}

// Check validates options without touching anything.
func Check(o Options) error {
	_, err := o.check()
	return err
}

// Open loads or makes the root and binds the ports. Run must follow.
func Open(ctx context.Context, o Options, deps Deps) (_ *Server, err error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	deps.Clock = clock.Or(deps.Clock)
	s := &Server{cfg: cfg, deps: deps}
	defer func() {
		if err != nil {
			s.close()
		}
	}()

	// Trust: the root, the bundle that holds it, and the signer that uses it.
	root, err := store.Open(ctx, store.Config{Dir: o.Dir, TrustDomain: cfg.trustDomain, RootTTL: o.RootTTL, Now: deps.Clock.Now()})
	if err != nil {
		return nil, err
	}
	s.logRoot(root)
	sign := signer.New(root.Certificate, root.Key)
	s.publisher = trustbundle.NewPublisher(cfg.trustDomain.Name(), func(ctx context.Context, roots []string) (uint64, error) {
		return store.Generation(ctx, o.Dir, roots)
	})
	s.bundle = trustbundle.NewManager(trustbundle.ManagerConfig{
		Own: string(root.CertPEM), ExtraFile: o.ExtraRootsFile, Out: s.writeBundle, Publisher: s.publisher, Clock: deps.Clock, Log: deps.Log,
	})
	if err := s.bundle.Publish(ctx); err != nil {
		return nil, err
	}

	// The ca's own certificate.
	s.ownCert = servercert.New(servercert.Config{
		Identity: cfg.identity, Policy: cfg.policy, Signer: sign, Publisher: s.publisher, Clock: deps.Clock, Log: deps.Log,
	})
	if err := s.ownCert.Renew(); err != nil {
		return nil, err
	}

	// Ports first, services then, so that a port in use is told before anything runs.
	if s.grpcLis, err = listen(ctx, o.GRPCAddress); err != nil {
		return nil, fmt.Errorf("--grpc-address: %w", err)
	}
	if s.opsLis, err = listen(ctx, o.OpsAddress); err != nil {
		return nil, fmt.Errorf("--ops-address: %w", err)
	}
	watches := trustbundle.NewWatches(o.MaxWatches)
	metrics, tokens, err := s.buildGRPC(sign, watches)
	if err != nil {
		return nil, err
	}
	return s, s.buildOps(root, watches, metrics, tokens)
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// buildGRPC joins authentication, issuing and the bundle watch to the gRPC port.
func (s *Server) buildGRPC(sign *signer.Signer, watches *trustbundle.Watches) (*issuance.Metrics, *auth.JWT, error) {
	var err error
	s.gate, err = admission.New(admission.Config{Workers: s.cfg.Workers, Queue: s.cfg.Queue, Wait: s.cfg.QueueWait, Clock: s.deps.Clock})
	if err != nil {
		return nil, nil, err
	}
	metrics := issuance.NewMetrics(s.deps.Registry, s.gate)
	tokens, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: s.cfg.JWKSFile, Issuer: s.cfg.Issuer, Audiences: []string{tokenAudience}, TrustDomain: s.cfg.trustDomain, Clock: s.deps.Clock,
	})
	if err != nil {
		return nil, nil, err
	}
	callers := authn.Audited(
		authn.TokenAfterMaxAge(auth.FirstOf(auth.MTLSAt(s.deps.Clock), tokens), tokens, s.cfg.MaxRenewalAge, s.deps.Clock),
		s.deps.Log, func() { metrics.Refused(rejection.Unauthenticated) }, s.deps.Clock)

	policy := auth.Policy{
		security.IstioCertificateService_CreateCertificate_FullMethodName: auth.AnyIdentity(),
		cav1.TrustService_WatchBundle_FullMethodName:                      auth.InTrustDomain(s.cfg.trustDomain),
	}
	if !s.cfg.forwarder.IsZero() {
		policy[cav1.ForwardingService_ForwardCertificateRequest_FullMethodName] = auth.IDs(s.cfg.forwarder.String())
	}
	s.grpc, err = rpc.NewServer(rpc.ServerConfig{
		Service: "ca", Log: s.deps.Log, Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer,
		TLS:           tlsconf.ServerFrom(s.cfg.minTLS, s.ownCert, tls.VerifyClientCertIfGiven),
		Authenticator: callers,
		Policy:        policy,
		MaxRecvBytes:  maxMessageBytes, MaxHeaderBytes: maxHeaderBytes,
		MaxConnections: maxConnections, MaxConnectionsPerIdentity: maxIdentityConnections, MaxConcurrentStreams: maxStreams,
		MaxConnectionIdle: maxIdle,
	})
	if err != nil {
		return nil, nil, err
	}
	certificates := issuance.New(issuance.Config{
		Gate: s.gate, Policy: s.cfg.policy, Signer: sign, Clock: s.deps.Clock, Log: s.deps.Log, Metrics: metrics, Random: rand.Float64,
	})
	security.RegisterIstioCertificateServiceServer(s.grpc, certificates)
	cav1.RegisterForwardingServiceServer(s.grpc, issuance.NewForwarding(certificates, tokens))
	cav1.RegisterTrustServiceServer(s.grpc, trustbundle.NewServer(s.publisher, watches, s.deps.Clock, rand.Float64))
	return metrics, tokens, nil
}

// buildOps sets up the HTTP port, which shares nothing with the gRPC port's queue.
func (s *Server) buildOps(root *store.Root, watches *trustbundle.Watches, metrics *issuance.Metrics, tokens *auth.JWT) error {
	var admin func(*http.Request) error
	if s.cfg.AdminJWKSFile != "" {
		jwt, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.AdminJWKSFile, Issuer: s.cfg.AdminIssuer, Audiences: []string{adminAudience}, TrustDomain: s.cfg.trustDomain, Clock: s.deps.Clock,
		})
		if err != nil {
			return err
		}
		admin = auth.HTTP(jwt, auth.IDs(s.cfg.admin.String()))
	}
	s.ops = ops.New(ops.Config{Listener: s.opsLis, Log: s.deps.Log, Gatherer: s.deps.Registry, Authenticate: admin})
	s.ops.Ready("own-certificate", s.certificateValid)
	s.ops.Ready("root", func() error { return expired("the root", root.Certificate.NotAfter, s.deps.Clock.Now()) })
	s.ops.Ready("jwks", once(tokens.Check))
	s.ops.Debug("/debug/bundle", "the trust bundle and who verifies with which generation", ops.JSON(func(*http.Request) (any, error) {
		return s.bundlePage(watches)
	}))
	s.ops.Debug("/debug/issued", "how many certificates were issued and refused since the start, and why", ops.JSON(func(*http.Request) (any, error) {
		return metrics.Counts(), nil
	}))
	s.registerGauges(root, watches)
	return nil
}

// Addr is the address of the gRPC port.
func (s *Server) Addr() net.Addr { return s.grpcLis.Addr() }

// OpsAddr is the address of the HTTP port.
func (s *Server) OpsAddr() net.Addr { return s.opsLis.Addr() }

// Handlers lists what the HTTP port answers.
func (s *Server) Handlers() []ops.Handler { return s.ops.Handlers() }

// Run serves until ctx ends; requests that are running then may finish.
func (s *Server) Run(ctx context.Context) error {
	s.deps.Log.Info("ca serves", "address", s.Addr().String(), "trust_domain", s.cfg.trustDomain.Name(), "identity", s.cfg.identity.String())
	return process.Run(ctx, s.deps.Log,
		process.Task{Name: "grpc", Run: func(ctx context.Context) error { return rpc.Serve(ctx, s.grpc, s.grpcLis, s.cfg.ShutdownGrace) }},
		process.Task{Name: "ops", Run: s.ops.Run},
		process.Task{Name: "own certificate", Run: s.ownCert.Run},
		process.Task{Name: "trust bundle", Run: s.bundle.Run},
	)
}

func (s *Server) close() {
	for _, l := range []net.Listener{s.grpcLis, s.opsLis} {
		if l != nil {
			_ = l.Close()
		}
	}
}

func (s *Server) writeBundle(bundle []byte) error {
	if s.cfg.RootCertOut == "" {
		return nil
	}
	if err := fileio.Write(s.cfg.RootCertOut, bundle, 0o644); err != nil {
		return fmt.Errorf("--root-cert-out: %w", err)
	}
	return nil
}

func (s *Server) logRoot(root *store.Root) {
	s.deps.Log.Info("root opened", "made_now", root.Created, "directory", s.cfg.Dir, "subject", root.Certificate.Subject.String(),
		"sha256", fingerprint(root.Certificate.Raw), "not_after", root.Certificate.NotAfter)
	if left := root.Certificate.NotAfter.Sub(s.deps.Clock.Now()); left < rootWarning {
		s.deps.Log.Warn("root expires soon", "not_after", root.Certificate.NotAfter, "left", left.Round(time.Second))
	}
}

func (s *Server) certificateValid() error {
	m, err := s.ownCert.Current()
	if err != nil {
		return err
	}
	return expired("the ca's own certificate", m.NotAfter, s.deps.Clock.Now())
}

func expired(what string, notAfter, now time.Time) error {
	if now.Before(notAfter) {
		return nil
	}
	return fmt.Errorf("%s expired at %s", what, notAfter.Format(time.RFC3339))
}

// once passes a check's errors on until it has passed. A ca that loses its token keys later still renews by certificate, so it must stay in service.
func once(check func() error) func() error {
	var passed atomic.Bool
	return func() error {
		if passed.Load() {
			return nil
		}
		err := check()
		if err == nil {
			passed.Store(true)
		}
		return err
	}
}

var errNoBundle = errors.New("no bundle is published")
