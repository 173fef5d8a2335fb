package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/proxyless"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/statedir"
	"fairlead.dev/services/node-agent/internal/status"
)

// idlePoll is how often a draining agent looks whether gRPC programs are still connected.
const idlePoll = 100 * time.Millisecond

// grpcClients is what the agent does for proxyless gRPC programs.
type grpcClients struct {
	// files is nil where none are kept.
	files *proxyless.Files
	relay *relay.Relay
	// renew requests a new certificate.
	renew func()
}

// newKeeper makes what writes the workload's certificate to files, and the bootstrap of proxyless gRPC programs; nil if
// the configuration asks for neither.
func newKeeper(c *config.Config, dir *statedir.Dir, source tlsconf.Source, log *slog.Logger) (*proxyless.Files, error) {
	if c.CertificateDir == "" {
		return nil, nil //nolint:nilnil // none is no error
	}
	keep := proxyless.Config{Source: source, CertificateDir: c.CertificateDir, BootstrapPath: c.GRPCBootstrap, Log: log}
	if c.GRPCBootstrap != "" {
		socket, err := dir.SocketPath(statedir.XDS)
		if err != nil {
			return nil, process.WithExitCode(err, process.ExitUsage)
		}
		n, err := node.NewProxyless(c)
		if err != nil {
			return nil, process.WithExitCode(err, process.ExitRefused)
		}
		keep.Bootstrap, err = proxyless.Bootstrap(proxyless.BootstrapInput{Node: n, Socket: socket, CertificateDir: c.CertificateDir,
			TTL: c.SecretTTL})
		if err != nil {
			return nil, process.WithExitCode(err, process.ExitRefused)
		}
	}
	return proxyless.NewFiles(keep), nil
}

// beside runs an agent without an Envoy until ctx ends, which quit does, and the gRPC programs have had their time to
// end, too.
func beside(ctx context.Context, c *config.Config, clients grpcClients, p *service.Process, quit context.CancelFunc) error {
	s := ops.New(ops.Config{Address: c.StatusAddress.String(), Log: p.Log, Gatherer: p.Registry})
	s.Ready("programs", func() error { return clients.check(context.Background()) })
	s.Public("/healthz/ready", "200 when the programs beside the agent have what they need", status.Ready(clients.check))
	registerHealth(s, c, nil, p.Registry, p.Log)
	var skipDrain atomic.Bool
	takeOrders(s, orders{skipDrain: func() { skipDrain.Store(true) }, quit: quit, renew: clients.renew, drain: func(context.Context) error {
		clients.unready()
		skipDrain.Store(true)
		return nil
	}})
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.Task("status server", s.Run)
	p.Task("drain", func(hard context.Context) error {
		select {
		case <-ctx.Done():
			clients.unready() // first: whoever reads of the drain must not find the workload ready
			if !skipDrain.Load() {
				p.Log.Info("draining", "streams", clients.relay.Active())
				clients.drain(hard, c.Drain, clock.Real())
			}
		case <-hard.Done():
		}
		stop()
		return nil
	})
	return p.Run(serving)
}

// unready makes readiness fail from now on.
func (g grpcClients) unready() {
	if g.files != nil {
		g.files.Drain()
	}
}

func (g grpcClients) check(ctx context.Context) error {
	if g.files == nil {
		return nil
	}
	return g.files.Check(ctx)
}

// drain waits as Envoy's drain does: for the configured time, or until no program is connected.
func (g grpcClients) drain(hard context.Context, d config.Drain, c clock.Clock) {
	var end <-chan time.Time
	if d.Termination > 0 {
		end = c.After(d.Termination)
	}
	if !d.ExitOnZero {
		select {
		case <-hard.Done():
		case <-end:
		}
		return
	}
	wait := d.Minimum
	for {
		select {
		case <-hard.Done():
			return
		case <-end:
			return
		case <-c.After(wait):
		}
		if g.relay.Active() == 0 {
			return
		}
		wait = idlePoll
	}
}
