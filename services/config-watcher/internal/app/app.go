// Package app puts config-watcher together: its options, the one list that wires all of it, which sources there are,
// who may call which method and which namespaces a caller sees, and the pages under /debug.
package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/analysis/background"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/ban"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fanout"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/health"
	"fairlead.dev/services/config-watcher/internal/metrics"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/pipeline"
	"fairlead.dev/services/config-watcher/internal/quota"
	"fairlead.dev/services/config-watcher/internal/registration"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/remote"
	"fairlead.dev/services/config-watcher/internal/status"
	"fairlead.dev/services/config-watcher/internal/storeapi"
)

const (
	// maxMessageBytes is enough for the largest Apply, and for a Held message of some hundred thousand resources.
	maxMessageBytes = 17 << 20
	// tracerName is the tracer of the spans of configuration changes.
	tracerName = "fairlead.dev/services/config-watcher"
)

// deps are what a test replaces.
type deps struct {
	service.Deps
	// Identity replaces the certificate from the ca.
	Identity tlsconf.Source
	// StoreFS is the file system of --store-dir.
	StoreFS fileio.FS
	// Sources come after all others.
	Sources []source.Source
}

// Server is an opened config-watcher: its ports are bound.
type Server struct {
	*service.Process
	cfg      *config
	storeFS  fileio.FS
	identity tlsconf.Source

	locks   []*dirlock.Lock
	saved   *lastgood.Dir
	counter *revision.Counter
	codec   record.Codec
	sources []source.Source
	store   *memory.Store
	// kubernetes is nil without --kubernetes.
	kubernetes *kubernetes.Source
	// remotes is nil without --kubernetes or with --remote-clusters=false.
	remotes   *remote.Clusters
	joined    *aggregate.Aggregate
	quota     *quota.Table
	secrets   *credential.Table
	bans      *ban.Table
	health    *health.Table
	access    *access.Access
	audit     *audit.Log
	root      rootNamespace
	pipeline  *pipeline.Pipeline
	revisions *revision.Log
	fleet     *fleet.Table
	// others returns the proxies of the other replicas; nil if there are none.
	others func() ([]fleet.View, bool)
	// registering returns those that want to be registered; nil if there are no other replicas.
	registering  func() fleet.Registering
	registration *registration.Table
	// registrar writes WorkloadEntries into the API server; nil without --kubernetes.
	registrar *registration.KubernetesWriter
	findings  *background.Analyzer
	statuses  *status.Tracker
	ingresses *status.Ingresses
	watch     *fanout.Server
	grpc      *grpc.Server
	stop      chan struct{}
}

// Open wires everything and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, given service.Deps) (*Server, error) {
	return open(ctx, o, deps{Deps: given})
}

func open(ctx context.Context, o *Options, d deps) (_ *Server, err error) {
	cfg, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := &Server{cfg: cfg, Process: service.New(cfg.Options.Options, d.Deps), storeFS: d.StoreFS, identity: d.Identity,
		stop: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	// Directories that no other process may use.
	if err := s.openDirectories(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	// The own certificate.
	if err := s.buildIdentity(); err != nil {
		return nil, err
	}
	if cfg.WebhookOnly {
		return s, s.openWebhookOnly(ctx)
	}

	// From the sources to the revision log. Of one object in several sources the oldest counts, after the file of
	// --mesh-config-file.
	epoch, err := newEpoch()
	if err != nil {
		return nil, err
	}
	if s.audit, err = audit.Open(audit.Config{Path: cfg.AuditLog, Log: s.Log, Registerer: s.Registry, Clock: s.Clock}); err != nil {
		return nil, err
	}
	recorder := audit.NewRecorder(s.audit)
	if err := s.buildSources(recorder); err != nil {
		return nil, err
	}
	s.sources = append(s.sources, d.Sources...)
	s.revisions = revision.NewLog(epoch, s.Clock)
	if s.counter != nil {
		s.revisions.Continue(s.counter, func(err error) {
			s.Log.Warn("the number of a revision was not kept; after a restart, numbers may be used again", "error", err)
		})
	}
	s.fleet = fleet.NewTable(s.Clock)
	observer := metrics.New(s.Registry, metrics.State{
		Sources: s.sources, Revisions: s.revisions, Fleet: s.fleet.Counts,
		Conflicts: func() int { return len(s.joined.Conflicts()) }, Pending: func() int { return s.pipeline.Pending() },
		Refused: s.store.Refused, Unsaved: s.unsaved, Remotes: s.remotes,
	}, s.fleet)
	s.findings = background.New(background.Config{Domain: cfg.DomainSuffix, MultiTenant: cfg.MultiTenant, Lookup: s.lookup(), Log: s.Log,
		Clock: s.Clock})
	s.pipeline = pipeline.New(pipeline.Config{
		Mesh: normalise.New(normalise.Config{Cluster: cfg.ClusterID, Domain: cfg.DomainSuffix, TrustDomain: cfg.TrustDomain,
			Tenancy: s.tenancy()}),
		Log:        s.Log,
		Out:        s.revisions,
		Settled:    s.settled,
		Clock:      s.Clock,
		Tracer:     s.tracer(),
		Observe:    observer,
		Discovered: s.discovered,
	})
	// Secrets are taken out here: they are never part of a revision.
	s.secrets = credential.NewTable()
	s.bans = ban.NewTable(ban.Config{Protected: cfg.needed, Next: s.buildHealth(), Clock: s.Clock, Log: s.Log})
	s.joined = aggregate.New(s.Log, func(ctx context.Context, changes []normalise.Change) {
		s.quota.Take(changes)
		s.findings.SubmitCredentials(changes)
		if others := s.secrets.Take(changes); len(others) > 0 {
			s.bans.Submit(ctx, others)
		}
	}, meshConfigSource, s.sources...)
	if err := s.buildStatus(); err != nil {
		return nil, err
	}
	// Who may do what in the configuration API.
	s.access, err = access.New(access.Config{
		Admin: cfg.admin, TrustDomain: cfg.trustDomain, File: cfg.RolesFile, Root: s.meshWide, Bans: s.bans, Log: s.Log, Registerer: s.Registry,
		Clock: s.Clock,
	})
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--roles-file: %w", err), process.ExitUsage)
	}
	// From the revision log to subscribers.
	self := &configv1.Subscriber{Instance: "config-watcher/" + epoch, Version: version.Version}
	s.watch = fanout.NewServer(s.revisions, s.Log, self, observer)
	// Ports, so that one in use is told before anything runs.
	lis, err := s.Listen(ctx, "grpc-address", o.GRPCAddress)
	if err != nil {
		return nil, err
	}
	if err := s.ServeOps(ctx, service.Admin{ID: cfg.admin, Audience: contract.AdminAudience}); err != nil {
		return nil, err
	}
	if err := s.buildGRPC(lis, recorder); err != nil {
		return nil, err
	}
	if err := s.serveWebhook(ctx); err != nil {
		return nil, err
	}
	s.registerOps()
	s.addTasks()
	return s, nil
}

// newEpoch makes the random name of this run, within which revisions are numbered.
func newEpoch() (string, error) {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

func (s *Server) tracer() trace.Tracer {
	if s.Tracer == nil {
		return nil
	}
	return s.Tracer.Tracer(tracerName)
}

func (s *Server) buildIdentity() (err error) {
	if s.identity != nil {
		return nil
	}
	cache := ""
	if s.cfg.StateDir != "" {
		cache = filepath.Join(s.cfg.StateDir, "svid")
	}
	s.identity, err = s.Identity(svid.Config{
		CAAddress: s.cfg.CAAddress, CAIDs: []spiffeid.ID{s.cfg.ca}, TokenFile: s.cfg.CATokenFile, RootFile: s.cfg.RootCertFile,
		Identity: s.cfg.own, TTL: contract.CertificateTTL, CacheDir: cache,
	})
	return err
}

// buildGRPC registers the gRPC services and says who may call them.
func (s *Server) buildGRPC(lis net.Listener, recorder *audit.Recorder) error {
	var authenticator = auth.MTLSAt(s.Clock)
	if s.cfg.JWKSFile != "" {
		jwt, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.JWKSFile, Issuer: s.cfg.Issuer, Audiences: []string{contract.AdminAudience}, TrustDomain: s.cfg.trustDomain,
			Clock: s.Clock,
		})
		if err != nil {
			return err
		}
		authenticator = auth.FirstOf(authenticator, jwt)
	}
	xds, users := auth.IDs(s.cfg.xdsServer.String()), s.access.Rule()
	var err error
	s.grpc, err = s.ServeGRPC("grpc", lis, rpc.ServerConfig{
		Service:       "config-watcher",
		TLS:           tlsconf.Server(s.identity, tls.VerifyClientCertIfGiven),
		Authenticator: authenticator,
		Policy: auth.Policy{
			"/" + configv1.ConfigService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + secretv1.SecretService_ServiceDesc.ServiceName + "/*":      xds,
			"/" + configv1.ConfigStoreService_ServiceDesc.ServiceName + "/*": users,
			"/" + configv1.AccessService_ServiceDesc.ServiceName + "/*":      users,
			"/" + configv1.FleetService_ServiceDesc.ServiceName + "/*":       auth.Any(users, xds),
			configv1.FleetService_ListProxies_FullMethodName:                 auth.Any(users, xds, auth.IDs(s.cfg.own.String())),
		},
		MaxRecvBytes: maxMessageBytes,
	})
	if err != nil {
		return err
	}
	fleetService := fleet.NewService(s.fleet, s.revisions, s.stop, s.sight, s.registration.Refused)
	configv1.RegisterConfigServiceServer(s.grpc, configService{watch: s.watch, report: fleetService})
	configv1.RegisterFleetServiceServer(s.grpc, fleetService)
	secretv1.RegisterSecretServiceServer(s.grpc, credential.NewServer(credential.ServerConfig{
		Table: s.secrets, References: credential.NewReferences(s.revisions), Fleet: s.fleet, Bans: s.bans, TrustDomain: s.cfg.trustDomain,
		Stop: s.stop, Clock: s.Clock, Log: s.Log, Lookup: s.lookup(),
		// When there is a first revision, every source has been read, so the table holds all Secrets.
		Ready: func() <-chan struct{} {
			snapshot, changed := s.revisions.Current()
			if snapshot != nil {
				return nil
			}
			return changed
		},
	}))
	configv1.RegisterConfigStoreServiceServer(s.grpc, storeapi.NewServer(storeapi.Config{
		Store: s.store, Sources: s.sources, Remotes: s.remotes, Cluster: s.cfg.ClusterID, Revisions: s.pipeline, Elsewhere: s.joined,
		Access: s.access, Audit: recorder, Findings: s.findings, Statuses: s.statuses, Needed: s.cfg.needed, Log: s.Log, Stop: s.stop,
	}))
	configv1.RegisterAccessServiceServer(s.grpc, access.NewService(s.access, s.audit))
	return nil
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

// registerOps adds checks and pages to the HTTP port.
func (s *Server) registerOps() {
	s.Ops.Ready("own-certificate", s.certificateReady)
	s.Ops.Ready("sources", s.sourcesReady)
	s.registerDebug()
}

// certificateReady is the readiness of the own certificate.
func (s *Server) certificateReady() error {
	m, err := s.identity.Current()
	if err == nil && m.Certificate == nil {
		err = tlsconf.ErrNoCertificate
	}
	return err
}

// addTasks adds the tasks besides those of the ports.
func (s *Server) addTasks() {
	s.Task("pipeline", s.pipeline.Run)
	s.Task("findings", s.findings.Run)
	s.Task("bans", s.bans.Run)
	s.Task("roles", s.access.Run)
	s.Task("health of workloads", s.health.Run)
	s.Task("memory", footprint.NewKeeper(nil, s.Log).Run)
	for _, src := range s.sources {
		s.Task("source "+src.Name(), func(ctx context.Context) error {
			err := src.Run(ctx)
			if errors.Is(err, record.ErrLocked) {
				return process.WithExitCode(err, process.ExitUsage)
			}
			return err
		})
	}
	if s.kubernetes != nil {
		s.Task("wanted credentials", credential.NewWanted(s.revisions, s.fleet, s.kubernetes.Want).Run)
	}
	if s.saved != nil {
		s.Task("last good state", s.saved.Run)
	}
}

// Run serves until ctx ends. Watches and reports are then ended, so that subscribers move on; unary calls may finish.
func (s *Server) Run(ctx context.Context) error {
	if s.cfg.WebhookOnly {
		defer s.unlock()
		s.Log.Info("the validating webhook serves", "address", s.Addr("webhook-address").String(), "identity", s.cfg.own.String())
		return s.Process.Run(ctx)
	}
	s.Log.Info("config-watcher serves", "address", s.Addr("grpc-address").String(), "trust_domain", s.cfg.TrustDomain, "identity",
		s.cfg.own.String(), "epoch", s.revisions.Epoch())
	defer context.AfterFunc(ctx, func() {
		s.watch.Stop()
		close(s.stop)
	})()
	defer s.unlock()
	err := s.Process.Run(ctx)
	if s.saved != nil {
		// What the sources have read last must be there after the next start; a failure has been logged.
		_ = s.saved.Flush()
	}
	return err
}

func (s *Server) close() {
	s.unlock()
	if s.audit != nil {
		_ = s.audit.Close() // every line is on disk already
	}
	s.Close()
}
