// Package app puts xds-server together: its options, the one list that wires all of it, and who may call which method
// on which port.
package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/meshidentity"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/proto/fairlead/trust"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/balance"
	"fairlead.dev/services/xds-server/internal/certificate"
	"fairlead.dev/services/xds-server/internal/configsource"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/debug"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/report"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
)

const (
	// adsMethods are served on both ADS ports; the secure port serves those of packages balance and certificate, too.
	adsMethods = "/envoy.service.discovery.v3.AggregatedDiscoveryService/*"
	// maxRevisionBytes bounds one chunk of a revision: 1 MiB, or one resource.
	maxRevisionBytes = 64 << 20
	// maxRequestBytes bounds one request of a proxy: names and versions of all it holds.
	maxRequestBytes = 16 << 20
)

// Server is an opened xds-server: its ports are bound.
type Server struct {
	*service.Process
	cfg *config
}

// Open wires everything and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, deps service.Deps) (*Server, error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := &Server{Process: service.New(cfg.Options.Options, deps), cfg: cfg}
	if err := s.wire(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// metricsPrefix begins the names of the metrics of packages that services share.
const metricsPrefix = "fairlead_xds_server"

// wire makes the parts and the tasks that run them.
func (s *Server) wire(ctx context.Context) error {
	cfg := s.cfg

	// Identity: the own certificate, for the ADS port and for config-watcher.
	identity, err := meshidentity.New(s.Process, svid.Config{
		CAAddress: cfg.CAAddress, CAIDs: []spiffeid.ID{cfg.ca}, TokenFile: cfg.CATokenFile, RootFile: cfg.RootCertFile,
		Identity: cfg.own, TTL: contract.CertificateTTL, CacheDir: cfg.StateDir,
	}, metricsPrefix)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}

	// config-watcher: the mesh and credentials from it, the proxies' state to it.
	conn, err := s.Dial("config-watcher-address", rpc.ClientConfig{
		Target: cfg.ConfigWatcherAddress, TLS: tlsconf.Client(identity, cfg.configWatcher), MaxRecvBytes: maxRevisionBytes,
	})
	if err != nil {
		return err
	}

	self := &configv1.Subscriber{Instance: cfg.Instance + "/" + uuid.NewString()[:8], Version: version.Version}

	// The engine: snapshots of the mesh in, bytes per class out. It subscribes to the credentials that resources refer
	// to.
	credentials, err := credential.NewClient(credential.Config{
		Watcher: secretv1.NewSecretServiceClient(conn), Instance: self.GetInstance(), Log: s.Log, Registerer: s.Registry,
	})
	if err != nil {
		return err
	}
	engine, err := plan.NewEngine(plan.Config{
		Translators: translate.All(), Store: store.New(), Log: s.Log, Registerer: s.Registry, Credentials: credentials,
		Prebuild: []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.VirtualHostType},
	})
	if err != nil {
		return err
	}
	agents := acks.New() // what agents acknowledge of the trust bundle
	debuggers := lists.Map(cfg.debuggers, spiffeid.ID.String)
	ads, err := serve.New(serve.Config{
		Engine: engine, Log: s.Log, Registerer: s.Registry, TracerProvider: s.Tracer, Instance: cfg.Instance,
		MaxConnectionAge: cfg.MaxConnectionAge, MaxOnDemandHosts: cfg.MaxOnDemandHosts,
		MaxUnsentBytes: cfg.MaxUnsentMiB << 20, MaxAddressStreams: cfg.MaxAddressStreams, Trust: agents,
		Debug: serve.Debug{
			Allowed: auth.IDs(debuggers...),
			Answer: func(fleet *serve.Server, typeURL string, names []string) ([]*anypb.Any, error) {
				return debug.NewIstio(fleet, engine).Answer(typeURL, names)
			},
		},
	})
	if err != nil {
		return err
	}

	// ca: the trust bundle from it, for agents; and workloads' certificate requests to it, with their tokens.
	caConn, err := identity.DialCA("ca-address")
	if err != nil {
		return err
	}
	err = identity.Watch(caConn, meshidentity.Watch{
		Agents: agents, Apply: func(b *trust.Verified, signed *cav1.SignedBundle) {
			agents.SetCurrent(acks.Point{Epoch: b.GetEpoch(), Generation: b.GetGeneration()})
			engine.ApplySignedBundle(signed)
		},
	})
	if err != nil {
		return err
	}
	var certificates *certificate.Forwarder
	if cfg.ForwardCertificateRequests {
		if certificates, err = certificate.New(certificate.Config{
			CA: cav1.NewForwardingServiceClient(caConn), Banned: ads.Banned, Log: s.Log, Registerer: s.Registry,
		}); err != nil {
			return err
		}
	}

	// Following the mesh.
	config := configv1.NewConfigServiceClient(conn)
	mesh, err := configsource.New(configsource.Config{Watcher: config, Subscriber: self, Apply: ads.Apply, ApplyEndpoints: ads.ApplyEndpoints,
		Busy: ads.MostAnswered, Bans: ads.EnforceBans, Log: s.Log, Registerer: s.Registry})
	if err != nil {
		return err
	}
	reporter, err := report.New(report.Config{Sink: config, Fleet: ads, Subscriber: self, Log: s.Log})
	if err != nil {
		return err
	}

	// The other replicas: how many proxies each has, and who has too many.
	balancer, err := balance.New(balance.Config{
		Fleet: ads, Instance: self.GetInstance(), Peers: cfg.Peers, TLS: tlsconf.Client(identity, cfg.own), Period: cfg.RebalancePeriod,
		Log: s.Log, Registerer: s.Registry,
	})
	if err != nil {
		return err
	}

	// Ports.
	if err := s.secure(ctx, identity, ads, balancer, certificates); err != nil {
		return err
	}
	if err := s.plaintext(ctx, ads); err != nil {
		return err
	}
	if err := s.ServeOps(ctx, service.Admin{ID: cfg.admin, Audience: contract.AdminAudience}); err != nil {
		return err
	}
	s.Ops.Ready("identity", identity.Check)
	s.Ops.Ready("configuration", mesh.Ready)
	debug.Register(s.Ops, ops.JSON, ads, engine)

	s.Task("mesh", tlsconf.Identified(identity, mesh.Run))
	s.Task("credentials", tlsconf.Identified(identity, func(ctx context.Context) error {
		return credentials.Run(ctx, func(set *credential.Set, changed []credential.Ref) { engine.ApplyCredentials(set, changed) })
	}))
	s.Task("report", tlsconf.Identified(identity, reporter.Run))
	s.Task("engine", engine.Run)
	s.Task("balance", tlsconf.Identified(identity, balancer.Run))
	s.Task("drain", ads.Run)
	s.Task("memory", footprint.NewKeeper(nil, s.Log).Run)
	return nil
}

// connectionAge returns the age at which gRPC asks clients to reconnect, 0 for package rpc's default, and how long
// their streams may go on then. Package serve ends every stream within --max-connection-age and a fifth, so gRPC cuts
// none.
func (s *Server) connectionAge() (age, grace time.Duration) {
	if s.cfg.MaxConnectionAge < 0 { // streams are to live for ever
		return -1, 0
	}
	return 0, s.cfg.MaxConnectionAge + s.cfg.MaxConnectionAge/5
}

// secure opens the ADS port for client certificates and tokens of the own trust domain. Only the other replicas may ask
// for the load. certificates is nil if certificate requests are not forwarded.
func (s *Server) secure(
	ctx context.Context, identity tlsconf.Source, ads *serve.Server, balancer *balance.Balancer, certificates *certificate.Forwarder,
) error {
	authenticator, clientAuth := auth.MTLS(), tls.RequireAndVerifyClientCert
	if s.cfg.JWKSFile != "" {
		tokens, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.JWKSFile, Issuer: s.cfg.Issuer, Audiences: []string{contract.TokenAudience}, TrustDomain: s.cfg.trustDomain,
			ClustersFile: s.cfg.RemoteClustersFile, Reserved: s.cfg.reserved,
		})
		if err != nil {
			return fmt.Errorf("--jwks-file: %w", err)
		}
		authenticator, clientAuth = auth.FirstOf(authenticator, tokens), tls.VerifyClientCertIfGiven
		s.Task("remote clusters", func(ctx context.Context) error { return sayClusters(ctx, tokens, s.Clock, s.Log) })
	}
	lis, err := s.Listen(ctx, "secure-address", s.cfg.SecureAddress)
	if err != nil {
		return err
	}
	policy := auth.Policy{adsMethods: auth.InTrustDomain(s.cfg.trustDomain), balance.Methods: auth.IDs(s.cfg.own.String())}
	if certificates != nil {
		policy[certificate.Method] = auth.InTrustDomain(s.cfg.trustDomain)
	}
	g, err := s.serveADS("ads", lis, ads, rpc.ServerConfig{
		Service: "ads", TLS: tlsconf.ServerFrom(s.cfg.minTLS, identity, clientAuth), Authenticator: authenticator, Policy: policy,
	})
	if err != nil {
		return err
	}
	balancer.Register(g)
	if certificates != nil {
		certificates.Register(g)
	}
	return nil
}

// clustersPeriod is the time between two looks at what is wrong with the remote clusters.
const clustersPeriod = time.Minute

// sayClusters logs what is wrong with the remote clusters whose tokens count, once, until ctx ends.
func sayClusters(ctx context.Context, tokens *auth.JWT, clk clock.Clock, log *slog.Logger) error {
	said := ""
	for {
		now := ""
		if err := tokens.CheckClusters(); err != nil {
			now = err.Error()
		}
		if now != said && now != "" {
			log.Error("remote clusters are not in order; the last good ones stay", "error", now)
		}
		said = now
		if !clock.Sleep(ctx, clk, clustersPeriod) {
			return nil
		}
	}
}

// plaintext opens the ADS port without TLS, if it is asked for.
func (s *Server) plaintext(ctx context.Context, ads *serve.Server) error {
	if s.cfg.PlaintextAddress == "" {
		return nil
	}
	s.Log.Warn("a plaintext ADS port is open: whoever reaches it reads every proxy's configuration", "address", s.cfg.PlaintextAddress)
	lis, err := s.Listen(ctx, "plaintext-address", s.cfg.PlaintextAddress)
	if err != nil {
		return err
	}
	_, err = s.serveADS("plaintext ads", lis, ads, rpc.ServerConfig{
		Service: "plaintext-ads", Insecure: true, Policy: auth.Policy{adsMethods: auth.Anonymous()},
	})
	return err
}

// serveADS serves ADS on a port, with what the ADS ports have in common added to cfg.
func (s *Server) serveADS(task string, lis net.Listener, ads *serve.Server, cfg rpc.ServerConfig) (*grpc.Server, error) {
	cfg.MaxRecvBytes = maxRequestBytes
	cfg.MaxConnectionAge, cfg.MaxConnectionAgeGrace = s.connectionAge()
	g, err := s.ServeGRPC(task, lis, cfg, grpc.ForceServerCodecV2(wire.Codec()))
	if err != nil {
		return nil, err
	}
	ads.Register(g)
	return g, nil
}
