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

	"google.golang.org/grpc"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/admission"
	"fairlead.dev/services/ca/internal/authn"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/holders"
	"fairlead.dev/services/ca/internal/issuance"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/private"
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
	// streamWorkers have stacks that are large enough for a signature, which a goroutine for each call would have to
	// grow: that is 3% of the time of a request. A watch keeps one of them for as long as it is open.
	streamWorkers = 64
	// maxIdle closes the connections of Istio's agents, which would keep them until the next renewal half a day later.
	// So the agents of a whole mesh can connect one after another.
	maxIdle = 30 * time.Second
	// publishWithin is how long a replica that starts waits for the first bundle.
	publishWithin = 30 * time.Second
	// rootWarning is how long before its end the root is warned about.
	rootWarning = 90 * 24 * time.Hour
)

// Server is an opened ca: its root is loaded, its own certificate issued, its ports bound.
type Server struct {
	*service.Process
	cfg       *config
	fs        fileio.FS
	ownCert   *servercert.Source
	bundle    *trustbundle.Manager
	publisher *trustbundle.Publisher
	holders   *holders.Registry
	signed    *trustbundle.Signatures
	gate      *admission.Gate
	// cluster is set once it is known, with --kubernetes.
	cluster atomic.Pointer[kube.Sync]
	// stops end what runs before Run does.
	stops []func()
	// release gives --ca-dir up.
	release func()
}

// connect makes clients of the API server of the cluster that this process runs in, as kube.InCluster does.
type connect func() (*kube.Cluster, error)

// connectBy is how the options say that the cluster is found.
func connectBy(o *Options) connect {
	if o.Kubeconfig == "" {
		return kube.InCluster
	}
	return func() (*kube.Cluster, error) { return kube.ByKubeconfig(o.Kubeconfig, o.KubeContext) }
}

// deps are what a test replaces.
type deps struct {
	service.Deps
	Cluster connect
	// FS is the file system of --ca-dir and of keys.
	FS fileio.FS
}

// Open loads or makes the root and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, d service.Deps) (*Server, error) {
	return open(ctx, o, deps{Deps: d, Cluster: connectBy(o)})
}

func open(ctx context.Context, o *Options, deps deps) (_ *Server, err error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := &Server{cfg: cfg, fs: deps.FS, Process: service.New(cfg.Options.Options, deps.Deps)}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()

	if err := private.EnsureDir(cfg.Dir); err != nil {
		return nil, err
	}
	if s.release, err = private.Hold(cfg.Dir); err != nil {
		return nil, fmt.Errorf("--ca-dir: %w", err)
	}
	cluster, err := s.connect(deps.Cluster)
	if err != nil {
		return nil, err
	}

	// Trust: the signer, the bundle that has its roots, and who has them.
	sign := &signing{}
	s.publisher = trustbundle.NewPublisher(cfg.trustDomain.Name(), func(ctx context.Context, own, all []string) (trustbundle.Numbered, error) {
		return sign.driver.Number(ctx, own, all)
	})
	sign.Authority = authority.New(s.publisher)
	s.ownCert = servercert.New(servercert.Config{
		Identity: cfg.identity, Policy: cfg.policy, Signer: sign.Authority, Publisher: s.publisher, Clock: s.Clock, Log: s.Log,
	})
	state, err := s.openState(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if err := s.openHolders(ctx, state); err != nil {
		return nil, err
	}
	if err := s.openSigner(ctx, sign, state, cluster); err != nil {
		return nil, err
	}
	s.bundle = trustbundle.NewManager(trustbundle.ManagerConfig{
		Own: sign.driver.Own, ExtraFile: o.ExtraRootsFile, Out: s.writeBundle, Publisher: s.publisher, Clock: s.Clock, Log: s.Log,
	})
	if err := s.publishFirst(ctx); err != nil {
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
	metrics, tokens, err := s.buildGRPC(lis, sign, watches, members)
	if err != nil {
		return nil, err
	}
	s.buildOps(sign, watches, metrics, tokens, members)
	s.Task("own certificate", s.ownCert.Run)
	s.Task("trust bundle", s.bundle.Run)
	s.Task("memory", footprint.NewKeeper(s.Clock, s.Log).Run)
	return s, nil
}

// publishFirst publishes the bundle. A replica that takes no steps waits for the one that numbers it.
func (s *Server) publishFirst(ctx context.Context) error {
	deadline := s.Clock.Now().Add(publishWithin)
	for {
		err := s.bundle.Publish(ctx)
		if err == nil || len(s.cfg.Peers) == 0 || !s.Clock.Now().Before(deadline) || !clock.Sleep(ctx, s.Clock, time.Second) {
			return err
		}
	}
}

// buildGRPC joins authentication, issuing and the bundle watch to the gRPC port.
func (s *Server) buildGRPC(
	lis net.Listener, sign *signing, watches *trustbundle.Watches, members *membership,
) (*issuance.Metrics, *auth.JWT, error) {
	var err error
	s.gate, err = admission.New(admission.Config{Workers: s.cfg.Workers, Queue: s.cfg.Queue, Wait: s.cfg.QueueWait, Clock: s.Clock})
	if err != nil {
		return nil, nil, err
	}
	metrics := issuance.NewMetrics(s.Registry, s.gate)
	tokens, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: members.jwksFile, Issuer: members.issuer, Audiences: []string{contract.TokenAudience}, TrustDomain: s.cfg.trustDomain,
		MaxLifetime: s.cfg.MaxTokenLifetime, ClustersFile: members.clustersFile, Reserved: s.cfg.reserved, Clock: s.Clock,
	})
	if err != nil {
		return nil, nil, err
	}
	callers := authn.Audited(
		authn.TokenAfterMaxAge(auth.FirstOf(authn.InDomain(authn.WithCluster(auth.MTLSAt(s.Clock)), s.cfg.trustDomain, s.cfg.aliases), tokens),
			tokens, func(cluster string) time.Duration {
				return renewalAge(sign.Authority, s.cfg.policy.RenewalAge(cluster))
			}, s.Clock),
		s.Log, func() { metrics.Refused(rejection.Unauthenticated) }, s.Clock)

	policy := auth.Policy{
		security.IstioCertificateService_CreateCertificate_FullMethodName: auth.AnyIdentity(),
		cav1.TrustService_WatchBundle_FullMethodName:                      auth.InTrustDomain(s.cfg.trustDomain),
	}
	if sign.replicas != nil {
		policy[cav1.ReplicaService_Exchange_FullMethodName] = auth.IDs(s.cfg.identity.String())
	}
	if !s.cfg.forwarder.IsZero() {
		policy[cav1.ForwardingService_ForwardCertificateRequest_FullMethodName] = auth.IDs(s.cfg.forwarder.String())
	}
	server, err := s.ServeGRPC("grpc", lis, rpc.ServerConfig{
		Service:       "ca",
		TLS:           tlsconf.ServerFrom(s.cfg.minTLS, s.ownCert, tls.VerifyClientCertIfGiven, s.cfg.aliases...),
		Authenticator: callers,
		Policy:        policy,
		MaxRecvBytes:  maxMessageBytes, MaxHeaderBytes: maxHeaderBytes,
		MaxConnections: maxConnections, MaxConnectionsPerIdentity: maxIdentityConnections, MaxConcurrentStreams: maxStreams,
		MaxConnectionIdle: maxIdle,
	}, grpc.NumStreamWorkers(streamWorkers))
	if err != nil {
		return nil, nil, err
	}
	issue := issuance.Config{Gate: s.gate, Policy: s.cfg.policy, Signer: sign.Authority, Clock: s.Clock, Log: s.Log, Metrics: metrics,
		Random: rand.Float64, Holders: s.holders, Clusters: tokens}
	if members.accounts != nil {
		issue.Accounts, issue.Bans = members.accounts, members.bans
	}
	certificates := issuance.New(issue)
	security.RegisterIstioCertificateServiceServer(server, certificates)
	cav1.RegisterForwardingServiceServer(server, issuance.NewForwarding(certificates, tokens))
	s.signed = trustbundle.NewSignatures(s.ownCert, s.Clock)
	trust := trustbundle.ServerConfig{
		Publisher: s.publisher, Signed: s.signed, Watches: watches, Acknowledgements: s.holders, Clock: s.Clock, Random: rand.Float64,
	}
	if !s.cfg.forwarder.IsZero() {
		trust.Forwarder = s.cfg.forwarder.String()
	}
	if sign.replicas != nil {
		cav1.RegisterReplicaServiceServer(server, sign.replicas)
	}
	cav1.RegisterTrustServiceServer(server, trustbundle.NewServer(trust))
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
	s.Ops.Debug(caapi.ClustersPath, "the remote clusters whose tokens count, with the fingerprints of their keys",
		ops.JSON(func(*http.Request) (any, error) { return s.remoteClusters(tokens), nil }))
	s.clusterMetrics(tokens)
	s.rotationPages(sign.driver)
	s.rotationGauges(sign.driver)
	s.registerGauges(sign, watches)
}

// Run serves until ctx ends; requests that are running then may finish.
func (s *Server) Run(ctx context.Context) error {
	s.Log.Info("ca serves", "address", s.Addr("grpc-address").String(), "trust_domain", s.cfg.trustDomain.Name(), "identity",
		s.cfg.identity.String())
	defer s.release()
	return s.Process.Run(ctx)
}

// Close gives up what an Open that fails has begun.
func (s *Server) Close() {
	for _, stop := range s.stops {
		stop()
	}
	s.Process.Close()
	if s.release != nil {
		s.release()
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
