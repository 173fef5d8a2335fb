package service

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fanout"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/gatewaystatus"
	"fairlead.dev/services/config-watcher/internal/metrics"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/pipeline"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/storeapi"
)

const (
	// adminAudience is what the command line's and administrators' tokens are made for.
	adminAudience = "fairlead"
	// maxMessageBytes holds the largest Apply, and a Held message of some hundred thousand resources.
	maxMessageBytes = 17 << 20
	// tracerName of the spans of configuration changes.
	tracerName = "fairlead.dev/services/config-watcher"
)

// Deps are what a test may want to replace. Log and Registry are required.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
	Clock    clock.Clock
	// Identity replaces the certificate from the ca.
	Identity tlsconf.Source
}

// Service is an opened config-watcher: its ports are bound.
type Service struct {
	cfg  *config
	deps Deps

	identity tlsconf.Source
	svid     *svid.Manager

	sources   []source.Source
	store     *memory.Store
	joined    *aggregate.Aggregate
	secrets   *credential.Table
	pipeline  *pipeline.Pipeline
	revisions *revision.Log
	fleet     *fleet.Table
	watch     *fanout.Server
	stop      chan struct{}

	grpc    *grpc.Server
	grpcLis net.Listener
	ops     *ops.Server
	opsLis  net.Listener
}

// Open wires everything and binds the ports. Run must follow.
func Open(ctx context.Context, o Options, deps Deps) (_ *Service, err error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	deps.Clock = clock.Or(deps.Clock)
	s := &Service{cfg: cfg, deps: deps, stop: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	// Who we are.
	if err := s.buildIdentity(); err != nil {
		return nil, err
	}
	// From the sources to the revision log. The first source that has an object decides: what an operator pins by flag, then what was written
	// through the API, then files.
	epoch, err := newEpoch()
	if err != nil {
		return nil, err
	}
	s.buildSources()
	s.revisions = revision.NewLog(epoch, deps.Clock)
	s.fleet = fleet.NewTable(deps.Clock)
	observer := metrics.New(deps.Registry, metrics.State{
		Sources: s.sources, Revisions: s.revisions, Fleet: s.fleet.Counts,
		Conflicts: func() int { return len(s.joined.Conflicts()) }, Pending: func() int { return s.pipeline.Pending() },
	}, s.fleet)
	s.pipeline = pipeline.New(pipeline.Config{
		Mesh:    normalise.New(normalise.Config{Cluster: cfg.ClusterID, Domain: cfg.DomainSuffix, TrustDomain: cfg.TrustDomain}),
		Log:     deps.Log,
		Out:     s.revisions,
		Settled: s.settled,
		Clock:   deps.Clock,
		Tracer:  s.tracer(),
		Observe: observer,
	})
	// Secrets leave the way here: they are never part of a revision.
	s.secrets = credential.NewTable()
	s.joined = aggregate.New(deps.Log, func(ctx context.Context, changes []normalise.Change) {
		if others := s.secrets.Take(changes); len(others) > 0 {
			s.pipeline.Submit(ctx, others)
		}
	}, s.sources...)
	// From the revision log to subscribers.
	self := &configv1.Subscriber{Instance: "config-watcher/" + epoch, Version: version.Version}
	s.watch = fanout.NewServer(s.revisions, deps.Log, self, observer)
	// Ports, so that one in use is told before anything runs.
	if s.grpcLis, err = listen(ctx, o.GRPCAddress); err != nil {
		return nil, fmt.Errorf("--grpc-address: %w", err)
	}
	if s.opsLis, err = listen(ctx, o.OpsAddress); err != nil {
		return nil, fmt.Errorf("--ops-address: %w", err)
	}
	if err := s.buildGRPC(); err != nil {
		return nil, err
	}
	return s, s.buildOps()
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// newEpoch names this run.
func newEpoch() (string, error) {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

func (s *Service) tracer() trace.Tracer {
	if s.deps.Tracer == nil {
		return nil
	}
	return s.deps.Tracer.Tracer(tracerName)
}

func (s *Service) buildIdentity() (err error) {
	if s.deps.Identity != nil {
		s.identity = s.deps.Identity
		return nil
	}
	cache := ""
	if s.cfg.StateDir != "" {
		if err := os.MkdirAll(s.cfg.StateDir, 0o700); err != nil {
			return fmt.Errorf("--state-dir: %w", err)
		}
		cache = filepath.Join(s.cfg.StateDir, "svid")
	}
	s.svid, err = svid.New(svid.Config{
		CAAddress: s.cfg.CAAddress, CAIDs: []spiffeid.ID{s.cfg.ca}, TokenFile: s.cfg.CATokenFile, RootFile: s.cfg.RootCertFile, TrustDomain: s.cfg.trustDomain,
		Identity: s.cfg.own, CacheDir: cache, Clock: s.deps.Clock, Log: s.deps.Log, Registerer: s.deps.Registry,
	})
	s.identity = s.svid
	return err
}

func (s *Service) buildSources() {
	if s.cfg.MeshConfigFile != "" {
		s.sources = append(s.sources, file.New(file.Config{
			Name: "mesh-config-file", Paths: []string{s.cfg.MeshConfigFile}, Resync: s.cfg.ResyncPeriod, Decode: file.MeshConfig, Log: s.deps.Log, Clock: s.deps.Clock,
		}))
	}
	s.store = memory.New(memory.Config{Dir: s.cfg.StoreDir, Log: s.deps.Log, Clock: s.deps.Clock})
	s.sources = append(s.sources, s.store)
	if len(s.cfg.ConfigDirs) > 0 {
		s.sources = append(s.sources, file.New(file.Config{
			Name: "file", Paths: s.cfg.ConfigDirs, Resync: s.cfg.ResyncPeriod, Log: s.deps.Log, Clock: s.deps.Clock,
		}))
	}
}

// settled reports whether no source holds the first revision up.
func (s *Service) settled() bool {
	for _, src := range s.sources {
		if !src.Status().Settled() {
			return false
		}
	}
	return true
}

// buildGRPC opens the contracts to those who may use them.
func (s *Service) buildGRPC() error {
	var authenticator = auth.MTLS()
	if s.cfg.JWKSFile != "" {
		jwt, err := s.jwt(s.cfg.JWKSFile, s.cfg.Issuer)
		if err != nil {
			return err
		}
		authenticator = auth.FirstOf(auth.MTLS(), jwt)
	}
	xds, admins := auth.IDs(s.cfg.xdsServer.String()), auth.IDs(s.cfg.admins.String())
	var err error
	s.grpc, err = rpc.NewServer(rpc.ServerConfig{
		Service: "config-watcher", Log: s.deps.Log, Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer,
		TLS:           tlsconf.Server(s.identity, tls.VerifyClientCertIfGiven),
		Authenticator: authenticator,
		Policy: auth.Policy{
			"/" + configv1.ConfigService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + secretv1.SecretService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + configv1.ConfigStoreService_ServiceDesc.ServiceName + "/*": admins,
			"/" + configv1.FleetService_ServiceDesc.ServiceName + "/*":       auth.Any(admins, xds),
		},
		MaxRecvBytes: maxMessageBytes,
	})
	if err != nil {
		return err
	}
	fleetService := fleet.NewService(s.fleet, s.revisions, s.stop)
	configv1.RegisterConfigServiceServer(s.grpc, configService{watch: s.watch, report: fleetService})
	configv1.RegisterFleetServiceServer(s.grpc, fleetService)
	secretv1.RegisterSecretServiceServer(s.grpc, credential.NewServer(credential.ServerConfig{
		Table: s.secrets, TrustDomain: s.cfg.trustDomain, Stop: s.stop,
		// The first revision waits for every source, and for nothing that the table does not hold by then.
		Ready: func() <-chan struct{} {
			snapshot, changed := s.revisions.Current()
			if snapshot != nil {
				return nil
			}
			return changed
		},
	}))
	configv1.RegisterConfigStoreServiceServer(s.grpc, storeapi.NewServer(s.store, s.pipeline, s.joined, s.deps.Log, s.stop))
	return nil
}

func (s *Service) jwt(jwks, issuer string) (*auth.JWT, error) {
	return auth.NewJWT(auth.JWTConfig{JWKSFile: jwks, Issuer: issuer, Audiences: []string{adminAudience}, TrustDomain: s.cfg.trustDomain, Clock: s.deps.Clock})
}

// configService joins the two halves of ConfigService.
type configService struct {
	configv1.UnimplementedConfigServiceServer
	watch  *fanout.Server
	report *fleet.Service
}

// Watch implements ConfigService.
func (c configService) Watch(stream grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]) error {
	return c.watch.Watch(stream)
}

// Report implements ConfigService.
func (c configService) Report(stream grpc.BidiStreamingServer[configv1.ReportRequest, configv1.ReportResponse]) error {
	return c.report.Report(stream)
}

func (s *Service) buildOps() error {
	var admin func(*http.Request) error
	if s.cfg.AdminJWKSFile != "" {
		jwt, err := s.jwt(s.cfg.AdminJWKSFile, s.cfg.AdminIssuer)
		if err != nil {
			return err
		}
		admin = auth.HTTP(jwt, auth.IDs(s.cfg.admins.String()))
	}
	s.ops = ops.New(ops.Config{Listener: s.opsLis, Log: s.deps.Log, Gatherer: s.deps.Registry, Authenticate: admin})
	s.ops.Ready("own-certificate", func() error {
		m, err := s.identity.Current()
		if err == nil && m.Certificate == nil {
			err = tlsconf.ErrNoCertificate
		}
		return err
	})
	s.ops.Ready("sources", s.sourcesReady)
	s.registerDebug()
	return nil
}

// sourcesReady fails until there is a revision, naming who holds it up. A source that degrades later leaves the service ready: taking it away
// would turn one source's failure into everybody's.
func (s *Service) sourcesReady() error {
	if snapshot, _ := s.revisions.Current(); snapshot != nil {
		return nil
	}
	var waiting []string
	for _, src := range s.sources {
		if !src.Status().Settled() {
			waiting = append(waiting, src.Name())
		}
	}
	if len(waiting) == 0 {
		return errors.New("the first revision is being built")
	}
	return fmt.Errorf("not synced yet: %s", strings.Join(waiting, ", "))
}

// Addr is the address of the gRPC port.
func (s *Service) Addr() net.Addr { return s.grpcLis.Addr() }

// OpsAddr is the address of the HTTP port.
func (s *Service) OpsAddr() net.Addr { return s.opsLis.Addr() }

// Handlers lists what the HTTP port answers.
func (s *Service) Handlers() []ops.Handler { return s.ops.Handlers() }

// Run serves until ctx ends. Watches and reports are then ended, so that subscribers move on; unary calls may finish.
func (s *Service) Run(ctx context.Context) error {
	s.deps.Log.Info("config-watcher serves", "address", s.Addr().String(), "trust_domain", s.cfg.TrustDomain, "identity", s.cfg.own.String(), "epoch", s.revisions.Epoch())
	defer context.AfterFunc(ctx, func() {
		s.watch.Stop()
		close(s.stop)
	})()
	tasks := []process.Task{
		{Name: "grpc", Run: func(ctx context.Context) error { return rpc.Serve(ctx, s.grpc, s.grpcLis, s.cfg.ShutdownGrace) }},
		{Name: "ops", Run: s.ops.Run},
		{Name: "pipeline", Run: s.pipeline.Run},
		{Name: "memory", Run: footprint.NewKeeper(nil, s.deps.Log).Run},
	}
	if s.svid != nil {
		tasks = append(tasks, process.Task{Name: "own certificate", Run: s.svid.Run})
	}
	statuses := gatewaystatus.NewUpdater(gatewaystatus.Config{
		Revisions: s.revisions, Fleet: s.fleet, Credentials: s.secrets, Store: s.store, Log: s.deps.Log, Clock: s.deps.Clock,
	})
	tasks = append(tasks, process.Task{Name: "status of gateways", Run: statuses.Run})
	for _, src := range s.sources {
		tasks = append(tasks, process.Task{Name: "source " + src.Name(), Run: src.Run})
	}
	return process.Run(ctx, s.deps.Log, tasks...)
}

func (s *Service) close() {
	for _, l := range []net.Listener{s.grpcLis, s.opsLis} {
		if l != nil {
			_ = l.Close()
		}
	}
}
