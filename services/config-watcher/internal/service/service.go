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
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/ban"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fanout"
	"fairlead.dev/services/config-watcher/internal/findings"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/gatewaystatus"
	"fairlead.dev/services/config-watcher/internal/metrics"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/pipeline"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/disk"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/source/record"
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
	// StoreFS is the file system of --store-dir.
	StoreFS disk.FS
}

// Service is an opened config-watcher: its ports are bound.
type Service struct {
	cfg  *config
	deps Deps

	identity tlsconf.Source
	svid     *svid.Manager

	locks     []*dirlock.Lock
	saved     *lastgood.Dir
	counter   *revision.Counter
	codec     record.Codec
	sources   []source.Source
	store     *memory.Store
	joined    *aggregate.Aggregate
	secrets   *credential.Table
	bans      *ban.Table
	access    *access.Access
	audit     *audit.Log
	root      rootNamespace
	pipeline  *pipeline.Pipeline
	revisions *revision.Log
	fleet     *fleet.Table
	findings  *findings.Analyzer
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
	// Directories that are ours alone.
	if err := s.openDirectories(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
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
	if s.audit, err = audit.Open(audit.Config{Path: cfg.AuditLog, Log: deps.Log, Registerer: deps.Registry, Clock: deps.Clock}); err != nil {
		return nil, err
	}
	recorder := audit.NewRecorder(s.audit)
	s.buildSources(recorder)
	s.revisions = revision.NewLog(epoch, deps.Clock)
	if s.counter != nil {
		s.revisions.Continue(s.counter, func(err error) {
			deps.Log.Warn("the number of a revision was not kept; after a restart, numbers may be used again", "error", err)
		})
	}
	s.fleet = fleet.NewTable(deps.Clock)
	observer := metrics.New(deps.Registry, metrics.State{
		Sources: s.sources, Revisions: s.revisions, Fleet: s.fleet.Counts,
		Conflicts: func() int { return len(s.joined.Conflicts()) }, Pending: func() int { return s.pipeline.Pending() },
		Refused: s.store.Refused, Unsaved: s.unsaved,
	}, s.fleet)
	s.findings = findings.New(findings.Config{Domain: cfg.DomainSuffix, Log: deps.Log, Clock: deps.Clock})
	s.pipeline = pipeline.New(pipeline.Config{
		Mesh:       normalise.New(normalise.Config{Cluster: cfg.ClusterID, Domain: cfg.DomainSuffix, TrustDomain: cfg.TrustDomain}),
		Log:        deps.Log,
		Out:        s.revisions,
		Settled:    s.settled,
		Clock:      deps.Clock,
		Tracer:     s.tracer(),
		Observe:    observer,
		Discovered: s.findings.Submit,
	})
	// Secrets leave the way here: they are never part of a revision.
	s.secrets = credential.NewTable()
	s.bans = ban.NewTable(ban.Config{Protected: cfg.needed, Next: s.pipeline.Submit, Clock: deps.Clock, Log: deps.Log})
	s.joined = aggregate.New(deps.Log, func(ctx context.Context, changes []normalise.Change) {
		s.findings.SubmitCredentials(changes)
		if others := s.secrets.Take(changes); len(others) > 0 {
			s.bans.Submit(ctx, others)
		}
	}, s.sources...)
	// Who may do what in the configuration API.
	s.access, err = access.New(access.Config{
		Admin: cfg.admins, TrustDomain: cfg.trustDomain, File: cfg.RolesFile, Root: s.meshWide, Bans: s.bans, Log: deps.Log, Registerer: deps.Registry, Clock: deps.Clock,
	})
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--roles-file: %w", err), process.ExitUsage)
	}
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
	if err := s.buildGRPC(recorder); err != nil {
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
		cache = filepath.Join(s.cfg.StateDir, "svid")
	}
	s.svid, err = svid.New(svid.Config{
		CAAddress: s.cfg.CAAddress, CAIDs: []spiffeid.ID{s.cfg.ca}, TokenFile: s.cfg.CATokenFile, RootFile: s.cfg.RootCertFile, TrustDomain: s.cfg.trustDomain,
		Identity: s.cfg.own, CacheDir: cache, Clock: s.deps.Clock, Log: s.deps.Log, Registerer: s.deps.Registry,
	})
	s.identity = s.svid
	return err
}

// buildGRPC opens the contracts to those who may use them.
func (s *Service) buildGRPC(recorder *audit.Recorder) error {
	var authenticator = auth.MTLSAt(s.deps.Clock)
	if s.cfg.JWKSFile != "" {
		jwt, err := s.jwt(s.cfg.JWKSFile, s.cfg.Issuer)
		if err != nil {
			return err
		}
		authenticator = auth.FirstOf(authenticator, jwt)
	}
	xds, users := auth.IDs(s.cfg.xdsServer.String()), s.access.Rule()
	var err error
	s.grpc, err = rpc.NewServer(rpc.ServerConfig{
		Service: "config-watcher", Log: s.deps.Log, Registerer: s.deps.Registry, TracerProvider: s.deps.Tracer,
		TLS:           tlsconf.Server(s.identity, tls.VerifyClientCertIfGiven),
		Authenticator: authenticator,
		Policy: auth.Policy{
			"/" + configv1.ConfigService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + secretv1.SecretService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + configv1.ConfigStoreService_ServiceDesc.ServiceName + "/*": users,
			"/" + configv1.AccessService_ServiceDesc.ServiceName + "/*":      users,
			"/" + configv1.FleetService_ServiceDesc.ServiceName + "/*":       auth.Any(users, xds),
		},
		MaxRecvBytes: maxMessageBytes,
	})
	if err != nil {
		return err
	}
	fleetService := fleet.NewService(s.fleet, s.revisions, s.stop, s.sight)
	configv1.RegisterConfigServiceServer(s.grpc, configService{watch: s.watch, report: fleetService})
	configv1.RegisterFleetServiceServer(s.grpc, fleetService)
	secretv1.RegisterSecretServiceServer(s.grpc, credential.NewServer(credential.ServerConfig{
		Table: s.secrets, References: credential.NewReferences(s.revisions), Fleet: s.fleet, Bans: s.bans, TrustDomain: s.cfg.trustDomain,
		Stop: s.stop, Clock: s.deps.Clock, Log: s.deps.Log,
		// The first revision waits for every source, and for nothing that the table does not hold by then.
		Ready: func() <-chan struct{} {
			snapshot, changed := s.revisions.Current()
			if snapshot != nil {
				return nil
			}
			return changed
		},
	}))
	configv1.RegisterConfigStoreServiceServer(s.grpc, storeapi.NewServer(storeapi.Config{
		Store: s.store, Sources: s.sources, Revisions: s.pipeline, Elsewhere: s.joined, Access: s.access, Audit: recorder, Findings: s.findings, Needed: s.cfg.needed, Log: s.deps.Log, Stop: s.stop,
	}))
	configv1.RegisterAccessServiceServer(s.grpc, access.NewService(s.access, s.audit))
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
		{Name: "findings", Run: s.findings.Run},
		{Name: "bans", Run: s.bans.Run},
		{Name: "roles", Run: s.access.Run},
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
		tasks = append(tasks, process.Task{Name: "source " + src.Name(), Run: func(ctx context.Context) error {
			err := src.Run(ctx)
			if errors.Is(err, record.ErrLocked) {
				return process.WithExitCode(err, process.ExitUsage)
			}
			return err
		}})
	}
	if s.saved != nil {
		tasks = append(tasks, process.Task{Name: "last good state", Run: s.saved.Run})
	}
	defer s.unlock()
	err := process.Run(ctx, s.deps.Log, tasks...)
	if s.saved != nil {
		// What the sources have read last must be there after the next start; a failure has been logged.
		_ = s.saved.Flush()
	}
	return err
}

func (s *Service) close() {
	s.unlock()
	if s.audit != nil {
		_ = s.audit.Close() // every line is on disk already
	}
	for _, l := range []net.Listener{s.grpcLis, s.opsLis} {
		if l != nil {
			_ = l.Close()
		}
	}
}
