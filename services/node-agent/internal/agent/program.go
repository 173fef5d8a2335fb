package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/proxyless"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/statedir"
	"fairlead.dev/services/node-agent/internal/status"
)

// idlePoll is how often a draining agent looks whether programs are left.
const idlePoll = 100 * time.Millisecond

// programs is the agent's side of gRPC programs that speak xDS themselves.
type programs struct {
	// files is nil where none are kept.
	files *proxyless.Files
	relay *relay.Relay
}

// newKeeper makes what keeps the files of gRPC programs; nil if nobody asks for
// any.
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
		keep.Bootstrap, err = proxyless.Bootstrap(proxyless.BootstrapInput{Node: n, Socket: socket, CertificateDir: c.CertificateDir, TTL: c.SecretTTL})
		if err != nil {
			return nil, process.WithExitCode(err, process.ExitRefused)
		}
	}
	return proxyless.NewFiles(keep), nil
}

// beside runs an agent without an Envoy until ctx ends and the programs beside
// it have had their time to end, too.
func beside(ctx context.Context, c *config.Config, p programs, reg *prometheus.Registry, log *slog.Logger, tasks []process.Task) error {
	s := ops.New(ops.Config{Address: c.StatusAddress.String(), Log: log, Gatherer: reg})
	s.Ready("programs", func() error { return p.check(context.Background()) })
	s.Public("/healthz/ready", "200 when the programs beside the agent have what they need", status.Ready(p.check))
	s.Public("/stats/prometheus", "the agent's metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	return process.Run(serving, log, append(tasks,
		process.Task{Name: "status server", Run: s.Run},
		process.Task{Name: "drain", Run: func(hard context.Context) error {
			select {
			case <-ctx.Done():
				if p.files != nil {
					p.files.Drain() // first: whoever reads of the drain must not find the workload ready
				}
				log.Info("draining", "streams", p.relay.Active())
				p.drain(hard, c.Drain, clock.Real())
			case <-hard.Done():
			}
			stop()
			return nil
		}},
	)...)
}

func (p programs) check(ctx context.Context) error {
	if p.files == nil {
		return nil
	}
	return p.files.Check(ctx)
}

// drain goes on serving as Envoy's drain does: for a time, or until nobody is
// left.
func (p programs) drain(hard context.Context, d config.Drain, c clock.Clock) {
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
		if p.relay.Active() == 0 {
			return
		}
		wait = idlePoll
	}
}
