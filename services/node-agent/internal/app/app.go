// Package app puts the node agent together: the one list that wires all of it, beside an Envoy (Run) or beside
// proxyless gRPC programs (proxyless.go), and the bootstrap that Envoy starts with.
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/tlsconf"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/cgroup"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/nameserver"
	"fairlead.dev/services/node-agent/internal/readiness"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/sds"
	"fairlead.dev/services/node-agent/internal/statedir"
	"fairlead.dev/services/node-agent/internal/status"
)

// worthTrimming is how many bytes an agent must have allocated before it gives memory back at rest: its start and a few
// scrapes of its metrics allocate more.
const worthTrimming = 4 << 20

// Output of Envoy: access logs and its own log.
type Output struct{ Stdout, Stderr io.Writer }

// Run runs the agent. It returns nil after ctx has ended and the proxy has been drained, or after Envoy was told to
// quit, and otherwise the error that ended it.
func Run(ctx context.Context, c *config.Config, log *slog.Logger, out Output) error {
	for _, w := range c.Warnings {
		log.Warn("configuration", "warning", w)
	}
	binary, err := findEnvoy(c)
	if err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	if transparent(c) {
		if err := envoy.MayAdministerNetwork(); err != nil {
			return process.WithExitCode(err, process.ExitUsage)
		}
	}
	dir, err := statedir.Open(c.StateDir)
	if err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	defer func() { _ = dir.Close() }()
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "node-agent", Log: log})
	if err != nil {
		return err
	}

	p := service.New(service.Options{}, service.Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
	// In the order of the start: DNS proxy, key and certificate, xDS proxy, SDS, Envoy's bootstrap, Envoy. The sockets
	// are open before Envoy looks for them.
	names, err := nameServer(c, p)
	if err != nil {
		return err
	}
	c = withToken(c, dir, p)
	own, err := identity.Open(c, dir, p)
	if err != nil {
		return err
	}
	last, err := newLastGood(c, dir, own, p)
	if err != nil {
		return err
	}
	bundle := newTrustBundle(c, own)
	adsRelay := relay.New(relay.Config{
		AgentResource: names.table(),
		LastGood:      last,
		MoreResources: append(pushedRoots(c, own), bundle.resource()...),
		Addresses:     c.DiscoveryAddresses,
		Source:        own.ControlPlane,
		TLS:           tlsconf.Client(own.ControlPlane, c.DiscoveryIDs...),
		TokenFile:     c.TokenFile,
		Log:           log,
		Registerer:    tel.Registry,
	})
	keeper, err := newKeeper(c, dir, own.Workload, log)
	if err != nil {
		return err
	}
	relayServer := serverConfig("relay", relay.MaxRequest)
	if keeper != nil {
		bundle.usedBy(keeper.RootsInUse)
		relayServer.PeerUIDs = append(relayServer.PeerUIDs, 0) // a program that runs as root can read the files, too
		p.Task("certificate files to write", keeper.Run)
	}
	if err := serveSocket(p, dir, statedir.XDS, adsRelay.Register, relayServer, relay.ServerOptions()...); err != nil {
		return err
	}
	if err := tokenExchange(c, p); err != nil {
		return err
	}
	p.Task("memory", footprint.NewKeeper(clock.Real(), log).Worth(worthTrimming).Run)
	p.Task("renewal signal", renewOnSignal(own, log))
	if names.Server != nil {
		p.Task("DNS", names.Run)
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if c.NoEnvoy {
		tellHealth(c, p, adsRelay, nil)
		return beside(ctx, c, grpcClients{files: keeper, relay: adsRelay, renew: own.Renew}, p, quit)
	}

	sdsServer := sds.New(sds.Config{Source: own.Workload, Validation: own.Workload.Validation, Debounce: c.Secrets.Debounce, Log: log,
		Registerer: tel.Registry})
	bundle.usedBy(sdsServer.RootsInUse)
	if err := serveSocket(p, dir, statedir.SDS, sdsServer.Register, serverConfig("sds", rpc.DefaultMaxRecvBytes)); err != nil {
		return err
	}
	admin := envoy.NewAdmin(dir.Path(statedir.Admin))
	began := time.Now()
	prober := readiness.New(admin, own.Workload, clock.Real(), func() {
		log.Info("the proxy is ready", "after", time.Since(began).Round(time.Millisecond))
	})
	supervisor := newSupervisor(c, dir, binary, admin, prober, p, out)
	start, err := newBootstrap(ctx, c, dir, &supervisor.Options, log)
	if ctx.Err() != nil {
		return nil // told to end before Envoy was started
	}
	if err != nil {
		return err
	}
	verifyRedirection(c, p, prober)
	tellHealth(c, p, adsRelay, prober.Check)
	server := statusServer(c, admin, prober, tel.Registry, log)
	takeOrders(server, orders{skipDrain: supervisor.SkipDrain, drain: supervisor.DrainNow, quit: quit, renew: own.Renew})

	// Only Envoy is stopped by the signal. All other tasks run until it has ended: while it drains, it needs
	// certificates and endpoints.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.Task("certificate files", sdsServer.Run)
	p.Task("status server", server.Run)
	p.Task("Envoy", func(hard context.Context) error {
		if c.BootstrapXDS && start == nil {
			log.Warn("Envoy starts without what EnvoyFilters change of its bootstrap", "error", "a template has taken the bootstrap's place: "+
				c.Envoy.TemplateFile)
		} else if c.BootstrapXDS {
			waiting, cancel := context.WithCancel(hard)
			defer context.AfterFunc(ctx, cancel)()
			supervisor.Options.Bootstrap = patched(waiting, dir, start, supervisor.Options, adsRelay, log)
			if waiting.Err() != nil { // Envoy has nothing to drain
				stop()
				return nil
			}
		}
		err := supervisor.Run(hard, ctx)
		if err == nil {
			stop()
		}
		return err
	})
	return p.Run(serving)
}

// dnsServer is the DNS proxy; nil where the configuration asks for none.
type dnsServer struct{ *nameserver.Server }

// nameServer opens the ports of the DNS proxy, if the configuration asks for one.
func nameServer(c *config.Config, p *service.Process) (dnsServer, error) {
	if c.DNS == nil {
		return dnsServer{}, nil
	}
	s, err := nameserver.New(nameserver.Config{Addresses: c.DNS.Addresses, Namespace: c.Namespace, Resolv: c.DNS.Resolv, Log: p.Log,
		Registerer: p.Registry})
	return dnsServer{s}, err
}

// table is the resource that the xDS proxy subscribes to for the DNS proxy: the name table.
func (s dnsServer) table() *relay.AgentResource {
	if s.Server == nil {
		return nil
	}
	return &relay.AgentResource{TypeURL: ndsv1.NameTableType, Authority: bootstrap.XDSCluster, Take: s.Take}
}

// serverConfig is the configuration of a server on a unix socket that admits this user only.
func serverConfig(name string, maxRequest int) rpc.ServerConfig {
	return rpc.ServerConfig{
		Service:  name,
		Insecure: true, // a unix socket
		PeerUIDs: []uint32{uint32(os.Geteuid())},
		Policy: auth.Policy{"/envoy.service.secret.v3.SecretDiscoveryService/*": auth.Anonymous(),
			"/envoy.service.discovery.v3.AggregatedDiscoveryService/*": auth.Anonymous()},
		MaxRecvBytes:         maxRequest,
		MaxConnections:       64,
		MaxConcurrentStreams: 1024,
	}
}

// serveSocket opens a unix socket in dir, and adds the task that serves it.
func serveSocket(p *service.Process, dir *statedir.Dir, name string, register func(*grpc.Server), cfg rpc.ServerConfig,
	opts ...grpc.ServerOption) error {
	lis, err := dir.Listen(name)
	if err != nil {
		return err
	}
	server, err := p.ServeGRPC(cfg.Service, lis, cfg, opts...)
	if err != nil {
		return err
	}
	register(server)
	return nil
}

func newSupervisor(c *config.Config, dir *statedir.Dir, binary string, admin *envoy.Admin, prober *readiness.Prober, p *service.Process,
	out Output) *envoy.Supervisor {
	return &envoy.Supervisor{
		Options: envoy.Options{
			Binary:         binary,
			Dir:            dir.Path(""),
			Bootstrap:      dir.Path(statedir.Bootstrap),
			Concurrency:    c.Concurrency,
			DrainTime:      c.Drain.Envoy,
			LogLevel:       c.EnvoyLogLevel,
			ComponentLog:   c.EnvoyComponentLog,
			FileFlush:      c.EnvoyFileFlush,
			FileFlushKB:    c.EnvoyFileFlushKB,
			NetAdmin:       transparent(c),
			SkipDeprecated: c.Envoy.SkipDeprecated,
			CoreDump:       c.Envoy.CoreDump,
			Stdout:         out.Stdout,
			Stderr:         out.Stderr,
		},
		Admin:           admin,
		Drain:           envoy.DrainPolicy{Termination: c.Drain.Termination, Minimum: c.Drain.Minimum, ExitOnZero: c.Drain.ExitOnZero},
		IgnoreListeners: []string{bootstrap.ReadyStatPrefix, bootstrap.StatsStatPrefix},
		Gateway:         c.Role == config.Router,
		MaxRestarts:     c.EnvoyRestarts,
		OOMKills:        cgroup.Own("/").OOMKills,
		Metrics:         envoy.NewMetrics(p.Registry),
		OnDrain:         prober.Drain,
		OnRestart:       prober.Restarted,
		Clock:           clock.Real(),
		Log:             p.Log,
	}
}

// transparent reports whether Envoy keeps the callers' addresses of connections that it takes over (TPROXY).
func transparent(c *config.Config) bool {
	return c.Role == config.Sidecar && !c.NoEnvoy && c.Interception == meshv1alpha1.ProxyConfig_TPROXY.String()
}

func statusServer(c *config.Config, admin *envoy.Admin, prober *readiness.Prober, reg *prometheus.Registry, log *slog.Logger) *ops.Server {
	s := ops.New(ops.Config{Address: c.StatusAddress.String(), Log: log, Gatherer: reg})
	s.Ready("proxy", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return prober.Check(ctx)
	})
	s.Public("/healthz/ready", "200 when the proxy may receive traffic", status.Ready(prober.Check))
	registerHealth(s, c, admin, reg, log)
	return s
}

// renewOnSignal renews the certificate at every SIGUSR1.
func renewOnSignal(own *identity.Identity, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGUSR1)
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-signals:
				log.Info("renewing the certificate", "reason", "SIGUSR1")
				own.Renew()
			}
		}
	}
}

// findEnvoy returns the absolute path of the binary, because Envoy is started in another directory; "" if no Envoy
// runs.
func findEnvoy(c *config.Config) (string, error) {
	if c.NoEnvoy {
		return "", nil
	}
	path, err := exec.LookPath(c.EnvoyBinary)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("no Envoy to run: %w: give its path with --envoy-binary", err)
	}
	return path, nil
}
