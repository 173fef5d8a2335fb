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
	"istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/meshidentity"
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
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/source/record"
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

// Server is an opened config-watcher: its ports are bound. With --webhook-only it has only cfg, dirs and stop.
type Server struct {
	*service.Process
	cfg       *config
	dirs      directories
	audit     *audit.Log
	revisions *revision.Log
	pipeline  *pipeline.Pipeline
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
	s := &Server{cfg: cfg, Process: service.New(cfg.Options.Options, d.Deps), stop: make(chan struct{})}
	if err := s.wire(ctx, d); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// wire makes the parts and the tasks that run them.
func (s *Server) wire(ctx context.Context, d deps) error {
	cfg := s.cfg

	// Directories that no other process may use, and the own certificate.
	if err := s.openDirectories(); err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	identity, err := s.ownIdentity(d.Identity)
	if err != nil {
		return err
	}
	if cfg.WebhookOnly {
		return s.openWebhookOnly(ctx, identity)
	}

	// The revision log, and the fleet that follows it.
	epoch, err := newEpoch()
	if err != nil {
		return err
	}
	s.revisions = revision.NewLog(epoch, s.Clock)
	if s.dirs.counter != nil {
		s.revisions.Continue(s.dirs.counter, func(err error) {
			s.Log.Warn("the number of a revision was not kept; after a restart, numbers may be used again", "error", err)
		})
	}
	root := &rootNamespace{revisions: s.revisions}
	meshWide := func() []string { return []string{cfg.SystemNamespace, root.current()} } // their objects hold for the whole mesh
	proxies := fleet.NewTable(s.Clock)
	others := s.newReplicas(identity)
	observer := metrics.New(s.Registry, proxies)

	// What leads to the revision log: changes of sources pass bans, keys, names of gateways, exports and imports,
	// health and the pipeline; those of remote clusters begin with the names.
	s.pipeline = pipeline.New(pipeline.Config{
		Mesh: normalise.New(normalise.Config{Cluster: cfg.ClusterID, Domain: cfg.DomainSuffix, TrustDomain: cfg.TrustDomain,
			Tenancy: s.tenancy(), Now: s.Clock.Now}),
		Log: s.Log, Out: s.revisions, Clock: s.Clock, Tracer: s.tracer(), Observe: observer,
	})
	healths := health.NewTable(health.Config{Fleet: proxies, Next: s.pipeline.Submit, Peers: others.verified, Clock: s.Clock, Log: s.Log})
	sets := s.newClusterSets(healths.Submit)
	names := s.newGatewayNames(sets.submit)
	keys, err := s.newKeys(names.Submit)
	if err != nil {
		return err
	}
	bans := ban.NewTable(ban.Config{Protected: cfg.needed, Next: keys.Submit, Clock: s.Clock, Log: s.Log})

	// Sources. Of one object in several sources the oldest counts, after the file of --mesh-config-file. Secrets are
	// taken out here: they are never part of a revision.
	s.audit, err = audit.Open(audit.Config{Path: cfg.AuditLog, Log: s.Log, Registerer: s.Registry, Clock: s.Clock})
	if err != nil {
		return err
	}
	recorder := audit.NewRecorder(s.audit)
	quotas := quota.New(cfg.MaxNamespaceMemory, meshWide, s.Clock)
	from, err := s.newSources(d, recorder, quotas, names.Submit)
	if err != nil {
		return err
	}
	found := background.New(background.Config{Domain: cfg.DomainSuffix, MultiTenant: cfg.MultiTenant, Lookup: from.lookup(), Log: s.Log,
		Clock: s.Clock})
	secrets := credential.NewTable()
	served := s.mcpTable(func() string { return from.declared.Root() })
	var joined *aggregate.Aggregate
	s.addDeclared(from, identity, func(names []string, kubernetes bool) { s.arrange(joined, from, names, kubernetes) })
	joined = aggregate.New(s.Log, func(ctx context.Context, changes []normalise.Change) {
		from.declared.Take(changes)
		if served != nil {
			served.Take(changes)
		}
		quotas.Take(changes)
		found.SubmitCredentials(changes)
		if rest := secrets.Take(changes); len(rest) > 0 {
			bans.Submit(ctx, rest)
		}
	}, meshConfigSource, from.all...)
	metrics.Collect(s.Registry, metrics.State{
		Sources: from.all, Revisions: s.revisions, Fleet: proxies.Counts, Conflicts: func() int { return len(joined.Conflicts()) },
		Pending: s.pipeline.Pending, Refused: from.store.Refused, Unsaved: s.dirs.unsaved, Remotes: from.remotes,
		Registries: from.registries, Declared: from.declared,
	})

	// Who judges objects after each revision, and writes back to their sources.
	machines, registrar, err := s.newRegistration(proxies, others, from)
	if err != nil {
		return err
	}
	owner := status.NewOwner(s.cfg.IstioRevision)
	sinks, few, err := s.statusSinks(from, registrar, sets, owner)
	if err != nil {
		return err
	}
	statuses := status.NewTracker(status.Config{
		Domain: cfg.DomainSuffix, Revisions: s.revisions, Fleet: proxies, Credentials: secrets, Sources: from.all,
		Overridden: joined.Overridden, Findings: found, Keys: keys.Problems, Peers: others.verified,
		PeerReporters: others.reporters, Sinks: sinks, Few: few, Owner: owner, Log: s.Log, Clock: s.Clock,
	})
	ingresses := status.NewIngresses(sinks)
	references := &referred{table: secrets, clock: s.Clock}
	if from.kubernetes != nil {
		references.wanted, references.lookup = credential.NewWanted(s.revisions, proxies, from.kubernetes), from.kubernetes
		s.followLabels(from.kubernetes, owner, references, root)
	}
	settled := func() bool { return from.settled() && keys.Settled() && names.Settled() }
	discovered := func(changes []normalise.Change, settings *v1alpha1.MeshConfig, judged normalise.Judged) {
		found.Submit(changes, settings)
		machines.Submit(changes)
		statuses.Submit(changes, judged)
		s.grantsEnded(recorder, judged.Ended)
		ingresses.Submit(changes, settings)
		sets.discovered(changes, settings, sinks)
	}
	ends := pipeline.Ends{Settled: settled, Discovered: discovered, Wanted: references.want, Complete: references.complete}

	// Who may do what in the configuration API.
	roles, err := access.New(access.Config{
		Admin: cfg.admin, TrustDomain: cfg.trustDomain, File: cfg.RolesFile, Root: meshWide, Bans: bans, Log: s.Log, Registerer: s.Registry,
		Clock: s.Clock,
	})
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--roles-file: %w", err), process.ExitUsage)
	}

	// From the revision log to subscribers.
	self := &configv1.Subscriber{Instance: "config-watcher/" + epoch, Version: version.Version}
	s.watch = fanout.NewServer(s.revisions, s.Log, self, observer)

	// Ports, so that one in use is told before anything runs.
	lis, err := s.Listen(ctx, "grpc-address", cfg.GRPCAddress)
	if err != nil {
		return err
	}
	if err := s.ServeOps(ctx, service.Admin{ID: cfg.admin, Audience: contract.AdminAudience}); err != nil {
		return err
	}
	if s.grpc, err = s.serveGRPC(lis, identity, roles); err != nil {
		return err
	}
	if err := s.serveMCP(ctx, identity, served); err != nil {
		return err
	}
	fleetService := fleet.NewService(proxies, s.revisions, s.stop, cfg.sight(roles), machines.Refused)
	configv1.RegisterConfigServiceServer(s.grpc, configService{watch: s.watch, report: fleetService})
	configv1.RegisterFleetServiceServer(s.grpc, fleetService)
	secretv1.RegisterSecretServiceServer(s.grpc, credential.NewServer(credential.ServerConfig{
		Table: secrets, References: credential.NewReferences(s.revisions), Fleet: proxies, Bans: bans, TrustDomain: cfg.trustDomain,
		Stop: s.stop, Clock: s.Clock, Log: s.Log, Lookup: from.lookup(), Ended: s.accessEnded(recorder),
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
		Store: from.store, Sources: from.all, Remotes: from.remotes, Parts: from.parts, Cluster: cfg.ClusterID,
		Revisions: waiter{keys, s.pipeline},
		Elsewhere: joined, Access: roles, Audit: recorder, Findings: found, Statuses: statuses, Needed: cfg.needed, Unreadable: remedy,
		Log: s.Log, Stop: s.stop, Domain: cfg.DomainSuffix, Previews: consul.NewPreviews(consul.PreviewConfig{
			Addresses: fetch.Addresses{Allow: cfg.registryAllow}, Domain: cfg.DomainSuffix, System: cfg.SystemNamespace, Follow: consul.Follow,
			Registries: from.registries, Clock: s.Clock,
		}),
	}))
	configv1.RegisterAccessServiceServer(s.grpc, access.NewService(roles, s.audit))
	if err := s.serveWebhook(ctx, identity, root.current, quotas); err != nil {
		return err
	}
	s.Ops.Ready("own-certificate", certificateReady(identity))
	s.Ops.Ready("sources", func() error { return from.ready(s.revisions) })
	(&pages{sources: from, statuses: statuses, joined: joined, findings: found, secrets: secrets, keys: keys, names: names, fleet: proxies,
		revisions: s.revisions, unsaved: s.dirs.unsaved}).register(s.Ops)

	s.Task("status of objects", statuses.Run)
	if others.run != nil {
		awaited := func() bool { return statuses.Awaited() || healths.Following() || machines.Following() }
		s.Task("proxies of other replicas", tlsconf.Identified(identity, func(ctx context.Context) error { return others.run(ctx, awaited) }))
	}
	s.Task("pipeline", func(ctx context.Context) error { return s.pipeline.Run(ctx, ends) })
	s.Task("expiry of certificates", s.passTime)
	s.Task("findings", found.Run)
	s.Task("bans", bans.Run)
	s.Task("keys of tokens", keys.Run)
	s.Task("names of gateways", names.Run)
	s.Task("roles", roles.Run)
	s.Task("health of workloads", healths.Run)
	s.Task("memory", footprint.NewKeeper(nil, s.Log).Run)
	s.runSources(from)
	if from.kubernetes != nil {
		s.Task("wanted credentials", references.wanted.Run)
	}
	if s.dirs.saved != nil {
		s.Task("last good state", s.dirs.saved.Run)
	}
	return nil
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

// metricsPrefix begins the names of the metrics of packages that services share.
const metricsPrefix = "fairlead_config_watcher"

// ownIdentity is the certificate from the ca, or that given by a test.
func (s *Server) ownIdentity(given tlsconf.Source) (tlsconf.Source, error) {
	if given != nil {
		return given, nil
	}
	cache := ""
	if s.cfg.StateDir != "" {
		cache = filepath.Join(s.cfg.StateDir, "svid")
	}
	identity, err := meshidentity.New(s.Process, svid.Config{
		CAAddress: s.cfg.CAAddress, CAIDs: []spiffeid.ID{s.cfg.ca}, TokenFile: s.cfg.CATokenFile, RootFile: s.cfg.RootCertFile,
		Identity: s.cfg.own, TTL: contract.CertificateTTL, CacheDir: cache,
	}, metricsPrefix)
	if err != nil {
		return nil, err
	}
	ca, err := identity.DialCA("ca-address")
	if err != nil {
		return nil, err
	}
	return identity, identity.Watch(ca, meshidentity.Watch{})
}

// serveGRPC opens the gRPC port and says who may call its services.
func (s *Server) serveGRPC(lis net.Listener, identity tlsconf.Source, roles *access.Access) (*grpc.Server, error) {
	var authenticator = auth.MTLSAt(s.Clock)
	if s.cfg.JWKSFile != "" {
		jwt, err := auth.NewJWT(auth.JWTConfig{
			JWKSFile: s.cfg.JWKSFile, Issuer: s.cfg.Issuer, Audiences: []string{contract.AdminAudience}, TrustDomain: s.cfg.trustDomain,
			Clock: s.Clock,
		})
		if err != nil {
			return nil, err
		}
		authenticator = auth.FirstOf(authenticator, jwt)
	}
	xds, users := auth.IDs(s.cfg.xdsServer.String()), roles.Rule()
	return s.ServeGRPC("grpc", lis, rpc.ServerConfig{
		Service:       "config-watcher",
		TLS:           tlsconf.Server(identity, tls.VerifyClientCertIfGiven),
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

// certificateReady is the readiness of the own certificate.
func certificateReady(identity tlsconf.Source) func() error {
	return func() error {
		m, err := identity.Current()
		if err == nil && m.Certificate == nil {
			err = tlsconf.ErrNoCertificate
		}
		return err
	}
}

// runSources adds a task for each source. A store that another process has locked is wrong usage.
func (s *Server) runSources(from *sources) {
	for _, src := range from.all {
		s.Task("source "+src.Name(), func(ctx context.Context) error {
			err := src.Run(ctx)
			if errors.Is(err, record.ErrLocked) {
				return process.WithExitCode(err, process.ExitUsage)
			}
			return err
		})
	}
}

// Run serves until ctx ends. Watches and reports are then ended, so that subscribers move on; unary calls may finish.
func (s *Server) Run(ctx context.Context) error {
	if s.cfg.WebhookOnly {
		defer s.dirs.unlock()
		s.Log.Info("the validating webhook serves", "address", s.Addr("webhook-address").String(), "identity", s.cfg.own.String())
		return s.Process.Run(ctx)
	}
	s.Log.Info("config-watcher serves", "address", s.Addr("grpc-address").String(), "trust_domain", s.cfg.TrustDomain, "identity",
		s.cfg.own.String(), "epoch", s.revisions.Epoch())
	defer context.AfterFunc(ctx, func() {
		s.watch.Stop()
		close(s.stop)
	})()
	defer s.dirs.unlock()
	err := s.Process.Run(ctx)
	if s.dirs.saved != nil {
		// What the sources have read last must be there after the next start; a failure has been logged.
		_ = s.dirs.saved.Flush()
	}
	return err
}

func (s *Server) close() {
	s.dirs.unlock()
	if s.audit != nil {
		_ = s.audit.Close() // every line is on disk already
	}
	s.Close()
}
