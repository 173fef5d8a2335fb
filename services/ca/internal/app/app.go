// Package app puts the ca together: its options, the one list that wires all of it, who may call which method, the
// pages under /debug and the metrics that are read from other packages.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/admission"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/issuance"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/servercert"
	"fairlead.dev/services/ca/internal/store"
	"fairlead.dev/services/ca/internal/trustbundle"
)

const (
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
	// maxStreams of one connection is enough for a node's proxy that asks for many workloads at once, and keeps the
	// memory of one connection below about 1 MiB.
	maxStreams = 32
	// maxIdle closes the connections of Istio's agents, which would keep them until the next renewal half a day later.
	// So the agents of a whole mesh can connect one after another.
	maxIdle = 30 * time.Second
	// rootWarning is how long before its end the root is warned about.
	rootWarning = 90 * 24 * time.Hour
)

// Server is an opened ca: its root is loaded, its own certificate issued, its ports bound.
type Server struct {
	*service.Process
	cfg       *config
	ownCert   *servercert.Source
	bundle    *trustbundle.Manager
	publisher *trustbundle.Publisher
	gate      *admission.Gate
	// stops end what runs before Run does.
	stops []func()
}

// connect makes clients of the API server of the cluster that this process runs in, as kube.InCluster does.
type connect func() (*kube.Cluster, error)

// deps are what a test replaces.
type deps struct {
	service.Deps
	Cluster connect
}

// Open loads or makes the root and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, d service.Deps) (*Server, error) {
	return open(ctx, o, deps{Deps: d, Cluster: kube.InCluster})
}

func open(ctx context.Context, o *Options, deps deps) (_ *Server, err error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := &Server{cfg: cfg, Process: service.New(cfg.Options.Options, deps.Deps)}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()

	cluster, err := s.connect(deps.Cluster)
	if err != nil {
		return nil, err
	}

	// Trust: the signer, and the bundle that has its roots.
	s.publisher = trustbundle.NewPublisher(cfg.trustDomain.Name(), func(ctx context.Context, roots []string) (uint64, error) {
		return store.Generation(ctx, o.Dir, roots)
	})
	sign := &signing{Authority: authority.New(s.publisher)}
	s.ownCert = servercert.New(servercert.Config{
		Identity: cfg.identity, Policy: cfg.policy, Signer: sign.Authority, Publisher: s.publisher, Clock: s.Clock, Log: s.Log,
	})
	if err := s.openSigner(ctx, sign, cluster); err != nil {
		return nil, err
	}
	s.bundle = trustbundle.NewManager(trustbundle.ManagerConfig{
		Own: sign.roots, ExtraFile: o.ExtraRootsFile, Out: s.writeBundle, Publisher: s.publisher, Clock: s.Clock, Log: s.Log,
	})
	if err := s.bundle.Publish(ctx); err != nil {
		return nil, err
	}

	// The ca's own certificate.
	if err := s.ownCert.Renew(ctx); err != nil {
		return nil, err
	}

	members, err := s.joinCluster(ctx, cluster)
	if err != nil {
		return nil, err
	}

	// Ports first, services then, so that a port in use is told before anything runs.
	lis, err := s.Listen(ctx, "grpc-address", o.GRPCAddress)
	if err != nil {
		return nil, err
	}
	admin := service.Admin{ID: cfg.admin, Audience: contract.AdminAudience}
	if cfg.Kubernetes {
		admin.JWKSFile, admin.Issuer = members.jwksFile, members.issuer
	}
	if err := s.ServeOps(ctx, admin); err != nil {
		return nil, err
	}
	watches := trustbundle.NewWatches(o.MaxWatches)
	metrics, tokens, err := s.buildGRPC(lis, sign.Authority, watches, members)
	if err != nil {
		return nil, err
	}
	s.buildOps(sign, watches, metrics, tokens, members)
	s.Task("own certificate", s.ownCert.Run)
	s.Task("trust bundle", s.bundle.Run)
	return s, nil
}

// buildGRPC joins authentication, issuing and the bundle watch to the gRPC port.
func (s *Server) buildGRPC(
	lis net.Listener, sign *authority.Authority, watches *trustbundle.Watches, members *membership,
) (*issuance.Metrics, *auth.JWT, error) {
	var err error
	s.gate, err = admission.New(admission.Config{Workers: s.cfg.Workers, Queue: s.cfg.Queue, Wait: s.cfg.QueueWait, Clock: s.Clock})
	if err != nil {
		return nil, nil, err
	}
	metrics := issuance.NewMetrics(s.Registry, s.gate)
	tokens, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: members.jwksFile, Issuer: members.issuer, Audiences: []string{contract.TokenAudience}, TrustDomain: s.cfg.trustDomain,
		MaxLifetime: s.cfg.MaxTokenLifetime, Clock: s.Clock,
	})
	if err != nil {
		return nil, nil, err
	}
	callers := authn.Audited(
		authn.TokenAfterMaxAge(auth.FirstOf(auth.MTLSAt(s.Clock), tokens), tokens,
			func() time.Duration { return renewalAge(sign, s.cfg.MaxRenewalAge) }, s.Clock),
		s.Log, func() { metrics.Refused(rejection.Unauthenticated) }, s.Clock)

	policy := auth.Policy{
		security.IstioCertificateService_CreateCertificate_FullMethodName: auth.AnyIdentity(),
		cav1.TrustService_WatchBundle_FullMethodName:                      auth.InTrustDomain(s.cfg.trustDomain),
	}
	if !s.cfg.forwarder.IsZero() {
		policy[cav1.ForwardingService_ForwardCertificateRequest_FullMethodName] = auth.IDs(s.cfg.forwarder.String())
	}
	server, err := s.ServeGRPC("grpc", lis, rpc.ServerConfig{
		Service:       "ca",
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
	issue := issuance.Config{Gate: s.gate, Policy: s.cfg.policy, Signer: sign, Clock: s.Clock, Log: s.Log, Metrics: metrics,
		Random: rand.Float64}
	if members.accounts != nil {
		issue.Accounts, issue.Bans = members.accounts, members.bans
	}
	certificates := issuance.New(issue)
	security.RegisterIstioCertificateServiceServer(server, certificates)
	cav1.RegisterForwardingServiceServer(server, issuance.NewForwarding(certificates, tokens))
	cav1.RegisterTrustServiceServer(server, trustbundle.NewServer(s.publisher, watches, trustbundle.NewSignatures(s.ownCert, s.Clock), s.Clock,
		rand.Float64))
	return metrics, tokens, nil
}

// renewalAge is how long after its last token a workload may renew by certificate.
func renewalAge(sign *authority.Authority, most time.Duration) time.Duration {
	session, err := sign.Begin()
	if err != nil {
		return most
	}
	if issuer, err := session.Bounds(); err == nil && issuer.NeedsToken {
		return 0
	}
	return most
}

// buildOps adds checks, pages and metrics to the HTTP port, which shares nothing with the gRPC port's queue.
func (s *Server) buildOps(
	sign *signing, watches *trustbundle.Watches, metrics *issuance.Metrics, tokens *auth.JWT, members *membership,
) {
	s.Ops.Ready("own-certificate", s.certificateValid)
	s.Ops.Ready("root", func() error { return expired("the root, or the intermediate below it,", sign.expiry(), s.Clock.Now()) })
	s.Ops.Ready("jwks", once(tokens.Check))
	if members.accounts != nil {
		s.Ops.Ready("accounts", once(members.accounts.Ready))
		s.Ops.Ready("bans", once(members.bans.Ready))
	}
	s.Ops.Debug("/debug/bundle", "the trust bundle and who verifies with which generation", ops.JSON(func(*http.Request) (any, error) {
		return s.bundlePage(watches)
	}))
	s.Ops.Debug("/debug/issued", "how many certificates were issued and refused since the start, and why",
		ops.JSON(func(*http.Request) (any, error) {
			return metrics.Counts(), nil
		}))
	s.registerGauges(sign, watches)
}

// Run serves until ctx ends; requests that are running then may finish.
func (s *Server) Run(ctx context.Context) error {
	s.Log.Info("ca serves", "address", s.Addr("grpc-address").String(), "trust_domain", s.cfg.trustDomain.Name(), "identity",
		s.cfg.identity.String())
	return s.Process.Run(ctx)
}

// Close gives up what an Open that fails has begun.
func (s *Server) Close() {
	for _, stop := range s.stops {
		stop()
	}
	s.Process.Close()
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
	s.Log.Info("root opened", "made_now", root.Created, "directory", s.cfg.Dir, "subject", root.Certificate.Subject.String(),
		"sha256", fingerprint(root.Certificate.Raw), "not_after", root.Certificate.NotAfter)
	if left := root.Certificate.NotAfter.Sub(s.Clock.Now()); left < rootWarning {
		s.Log.Warn("root expires soon", "not_after", root.Certificate.NotAfter, "left", left.Round(time.Second))
	}
}

func (s *Server) certificateValid() error {
	m, err := s.ownCert.Current()
	if err != nil {
		return err
	}
	return expired("the ca's own certificate", m.NotAfter, s.Clock.Now())
}

func expired(what string, notAfter, now time.Time) error {
	if now.Before(notAfter) {
		return nil
	}
	return fmt.Errorf("%s expired at %s", what, notAfter.Format(time.RFC3339))
}

// once makes a readiness check that reports errors only until it has passed for the first time. A ca that loses its
// token keys later still renews by certificate, so it must stay ready.
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
