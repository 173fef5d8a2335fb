// Package app puts xds-server together.
package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/balance"
	"fairlead.dev/services/xds-server/internal/certificate"
	"fairlead.dev/services/xds-server/internal/configsource"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/debug"
	"fairlead.dev/services/xds-server/internal/options"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/report"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

const (
	// adsMethods is the service on the ADS ports; the secure one has that of package balance too.
	adsMethods = "/envoy.service.discovery.v3.AggregatedDiscoveryService/*"
	// proxyAudience is what Istio's agents ask their tokens for, adminAudience what operators' tools do.
	proxyAudience = "istio-ca"
	adminAudience = "fairlead"
	// maxUpstreamBytes bounds one chunk of a revision: 1 MiB, or one resource.
	maxUpstreamBytes = 64 << 20
	// maxRequestBytes bounds one request of a proxy: names and versions of all it holds.
	maxRequestBytes = 16 << 20
)

// Deps are what the process gives.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
}

// Server is one xds-server. SecureListener and the others are open once New has returned, so that their addresses are known.
type Server struct {
	SecureListener, PlaintextListener, OpsListener net.Listener

	cfg   *options.Config
	deps  Deps
	tasks []process.Task
}

// New wires everything and opens the ports; Run starts it.
func New(ctx context.Context, cfg *options.Config, deps Deps) (*Server, error) {
	s := &Server{cfg: cfg, deps: deps}
	if err := s.wire(ctx); err != nil {
		s.closeListeners()
		return nil, err
	}
	return s, nil
}

// wire makes the parts and the tasks that run them.
func (s *Server) wire(ctx context.Context) error {
	cfg, deps := s.cfg, s.deps

	// Identity: the own certificate, for the ADS port and for config-watcher.
	identity, err := svid.New(svid.Config{
		CAAddress: cfg.CAAddress, CAIDs: []spiffeid.ID{cfg.CA}, TokenFile: cfg.CATokenFile, RootFile: cfg.RootCertFile, TrustDomain: cfg.Domain,
		Identity: cfg.Own, CacheDir: cfg.StateDir, Log: deps.Log, Registerer: deps.Registry,
	})
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}

	// config-watcher: the mesh and credentials from it, the proxies' state to it.
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: cfg.ConfigWatcherAddress, TLS: tlsconf.Client(identity, cfg.ConfigWatcher), MaxRecvBytes: maxUpstreamBytes,
		Registerer: deps.Registry, TracerProvider: deps.Tracer,
	})
	if err != nil {
		return fmt.Errorf("--config-watcher-address: %w", err)
	}

	self := &configv1.Subscriber{Instance: cfg.Instance + "/" + uuid.NewString()[:8], Version: version.Version}

	// The engine: state of the mesh in, bytes per class out. What resources are made from decides which credentials are asked for.
	var engine *plan.Engine
	credentials, err := credential.NewClient(credential.Config{
		Watcher: secretv1.NewSecretServiceClient(conn), Instance: self.GetInstance(), Log: deps.Log, Registerer: deps.Registry,
		Apply: func(set *credential.Set, changed []credential.Ref) { engine.ApplyCredentials(set, changed) },
	})
	if err != nil {
		return err
	}
	engine, err = plan.NewEngine(plan.Config{
		Translators: translate.All(), Store: store.New(), Log: deps.Log, Registerer: deps.Registry, Credentials: credentials,
		Prebuild: []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.VirtualHostType},
	})
	if err != nil {
		return err
	}
	debuggers := make([]string, 0, len(cfg.Debuggers))
	for _, id := range cfg.Debuggers {
		debuggers = append(debuggers, id.String())
	}
	var istio *debug.Istio
	ads, err := serve.New(serve.Config{
		Engine: engine, Log: deps.Log, Registerer: deps.Registry, TracerProvider: deps.Tracer, Instance: cfg.Instance,
		MaxConnectionAge: cfg.MaxConnectionAge, MaxOnDemandHosts: cfg.MaxOnDemandHosts,
		MaxUnsentBytes: cfg.MaxUnsentMiB << 20, MaxResponseBytes: cfg.MaxResponseMiB << 20,
		MinStreams: cfg.MinIdentityStreams, MaxAddressStreams: cfg.MaxAddressStreams, MaxNamesBytes: cfg.MaxNamesMiB << 20,
		Debug: serve.Debug{
			Allowed: auth.IDs(debuggers...),
			Answer:  func(typeURL string, names []string) ([]*anypb.Any, error) { return istio.Answer(typeURL, names) },
		},
	})
	if err != nil {
		return err
	}
	istio = debug.NewIstio(ads, engine)

	// Certificates of workloads: their requests go to ca, with their tokens.
	var certificates *certificate.Forwarder
	if cfg.ForwardCertificateRequests {
		if certificates, err = s.certificates(identity, ads); err != nil {
			return err
		}
	}

	// Following the mesh.
	config := configv1.NewConfigServiceClient(conn)
	mesh, err := configsource.New(configsource.Config{Watcher: config, Subscriber: self, Apply: ads.Apply, Busy: ads.MostSettled, Bans: ads.EnforceBans,
		Log: deps.Log, Registerer: deps.Registry})
	if err != nil {
		return err
	}
	reporter, err := report.New(report.Config{Sink: config, Fleet: ads, Subscriber: self, Log: deps.Log})
	if err != nil {
		return err
	}

	// The other replicas: how many proxies each has, and who has too many.
	balancer, err := balance.New(balance.Config{
		Fleet: ads, Instance: self.GetInstance(), Peers: cfg.Peers, TLS: tlsconf.Client(identity, cfg.Own), Period: cfg.RebalancePeriod,
		Log: deps.Log, Registerer: deps.Registry,
	})
	if err != nil {
		return err
	}

	// Ports.
	secure, err := s.secure(ctx, identity, ads, balancer, certificates)
	if err != nil {
		return err
	}
	plaintext, err := s.plaintext(ctx, ads)
	if err != nil {
		return err
	}
	pages, err := s.ops(ctx)
	if err != nil {
		return err
	}
	pages.Ready("identity", identity.Check)
	pages.Ready("configuration", mesh.Ready)
	debug.Register(pages, ops.JSON, ads, engine)

	s.tasks = append(s.tasks, []process.Task{
		{Name: "identity", Run: identity.Run},
		{Name: "ops", Run: pages.Run},
		{Name: "mesh", Run: identified(identity, mesh.Run)},
		{Name: "credentials", Run: identified(identity, credentials.Run)},
		{Name: "report", Run: identified(identity, reporter.Run)},
		{Name: "engine", Run: engine.Run},
		{Name: "balance", Run: identified(identity, balancer.Run)},
		{Name: "drain", Run: ads.Run},
		{Name: "memory", Run: footprint.NewKeeper(nil, deps.Log).Run},
		{Name: "ads", Run: func(ctx context.Context) error { return rpc.Serve(ctx, secure, s.SecureListener, cfg.ShutdownGrace) }},
		{Name: "connection", Run: func(ctx context.Context) error { <-ctx.Done(); return conn.Close() }},
	}...)
	if plaintext != nil {
		s.tasks = append(s.tasks, process.Task{Name: "plaintext ads", Run: func(ctx context.Context) error {
			return rpc.Serve(ctx, plaintext, s.PlaintextListener, cfg.ShutdownGrace)
		}})
	}
	return nil
}

// identified runs a client of config-watcher or of the peers once the own certificate is there: a connection made without it would go on being anonymous.
func identified(identity *svid.Manager, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := identity.WaitReady(ctx); err != nil {
			return nil //nolint:nilerr // stopped before it came
		}
		return run(ctx)
	}
}

// Run runs until ctx ends or a part fails.
func (s *Server) Run(ctx context.Context) error { return process.Run(ctx, s.deps.Log, s.tasks...) }

// connectionAge is when clients are asked to connect anew, and how long their streams have then, which end by
// themselves within that time: no stream is cut that would not have ended.
func (s *Server) connectionAge() (age, grace time.Duration) {
	if s.cfg.MaxConnectionAge < 0 { // streams are to live for ever
		return -1, 0
	}
	return 0, s.cfg.MaxConnectionAge + s.cfg.MaxConnectionAge/5
}

// certificates prepares the connection to ca over which requests are forwarded, as this xds-server and with the
// callers' tokens.
func (s *Server) certificates(identity tlsconf.Source, ads *serve.Server) (*certificate.Forwarder, error) {
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: s.cfg.CAAddress, TLS: tlsconf.Client(identity, s.cfg.CA), Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer,
	})
	if err != nil {
		return nil, fmt.Errorf("--ca-address: %w", err)
	}
	s.tasks = append(s.tasks, process.Task{Name: "ca connection", Run: func(ctx context.Context) error { <-ctx.Done(); return conn.Close() }})
	return certificate.New(certificate.Config{
		CA: cav1.NewForwardingServiceClient(conn), Banned: ads.Banned, Log: s.deps.Log, Registerer: s.deps.Registry,
	})
}

// secure opens the ADS port: a client certificate or a token, of the own trust domain. The other replicas, and nobody else, may ask for the
// load there. Certificates are nil if requests for them are not answered.
func (s *Server) secure(
	ctx context.Context, identity tlsconf.Source, ads *serve.Server, balancer *balance.Balancer, certificates *certificate.Forwarder,
) (g *grpc.Server, err error) {
	authenticator, clientAuth := auth.MTLS(), tls.RequireAndVerifyClientCert
	if s.cfg.JWKSFile != "" {
		tokens, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.JWKSFile, Issuer: s.cfg.Issuer, Audiences: []string{proxyAudience}, TrustDomain: s.cfg.Domain,
		})
		if err != nil {
			return nil, fmt.Errorf("--jwks-file: %w", err)
		}
		authenticator, clientAuth = auth.FirstOf(authenticator, tokens), tls.VerifyClientCertIfGiven
	}
	if s.SecureListener, err = listen(ctx, "secure-address", s.cfg.SecureAddress); err != nil {
		return nil, err
	}
	policy := auth.Policy{adsMethods: auth.InTrustDomain(s.cfg.Domain), balance.Methods: auth.IDs(s.cfg.Own.String())}
	if certificates != nil {
		policy[certificate.Method] = auth.InTrustDomain(s.cfg.Domain)
	}
	age, grace := s.connectionAge()
	g, err = rpc.NewServer(rpc.ServerConfig{
		Service: "ads", Log: s.deps.Log, Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer,
		TLS: tlsconf.ServerFrom(s.cfg.MinTLS, identity, clientAuth), Authenticator: authenticator,
		Policy:       policy,
		MaxRecvBytes: maxRequestBytes, MaxConnectionAge: age, MaxConnectionAgeGrace: grace,
	}, grpc.ForceServerCodecV2(serve.Codec()))
	if err != nil {
		return nil, err
	}
	ads.Register(g)
	balancer.Register(g)
	if certificates != nil {
		certificates.Register(g)
	}
	return g, nil
}

// plaintext opens the ADS port without TLS, if it is asked for.
func (s *Server) plaintext(ctx context.Context, ads *serve.Server) (g *grpc.Server, err error) {
	if s.cfg.PlaintextAddress == "" {
		return nil, nil //nolint:nilnil // off
	}
	s.deps.Log.Warn("a plaintext ADS port is open: whoever reaches it reads every proxy's configuration", "address", s.cfg.PlaintextAddress)
	if s.PlaintextListener, err = listen(ctx, "plaintext-address", s.cfg.PlaintextAddress); err != nil {
		return nil, err
	}
	age, grace := s.connectionAge()
	g, err = rpc.NewServer(rpc.ServerConfig{
		Service: "plaintext-ads", Log: s.deps.Log, Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer, Insecure: true,
		Policy: auth.Policy{adsMethods: auth.Anonymous()}, MaxRecvBytes: maxRequestBytes,
		MaxConnectionAge: age, MaxConnectionAgeGrace: grace,
	}, grpc.ForceServerCodecV2(serve.Codec()))
	if err != nil {
		return nil, err
	}
	ads.Register(g)
	return g, nil
}

// ops opens the HTTP port.
func (s *Server) ops(ctx context.Context) (*ops.Server, error) {
	var authenticate func(*http.Request) error // nobody, unless there are keys to verify operators' tokens with
	if s.cfg.AdminJWKSFile != "" {
		tokens, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.AdminJWKSFile, Issuer: s.cfg.AdminIssuer, Audiences: []string{adminAudience}, TrustDomain: s.cfg.Domain,
		})
		if err != nil {
			return nil, fmt.Errorf("--admin-jwks-file: %w", err)
		}
		authenticate = auth.HTTP(tokens, auth.IDs(s.cfg.Admin.String()))
	}
	var err error
	if s.OpsListener, err = listen(ctx, "ops-address", s.cfg.OpsAddress); err != nil {
		return nil, err
	}
	return ops.New(ops.Config{
		Listener: s.OpsListener, Log: s.deps.Log, Gatherer: s.deps.Registry,
		Authenticate: authenticate,
	}), nil
}

func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return lis, nil
}

func (s *Server) closeListeners() {
	for _, lis := range []net.Listener{s.SecureListener, s.PlaintextListener, s.OpsListener} {
		if lis != nil {
			_ = lis.Close() // nothing was served yet
		}
	}
}
