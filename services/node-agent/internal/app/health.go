package app

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/node-agent/internal/appprobe"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/health"
	"fairlead.dev/services/node-agent/internal/metrics"
	"fairlead.dev/services/node-agent/internal/readiness"
	"fairlead.dev/services/node-agent/internal/relay"
)

// registerHealth adds kubelet's probes of the application and the merged metrics to the status port. admin is nil if no
// Envoy runs.
func registerHealth(s *ops.Server, c *config.Config, admin *envoy.Admin, reg *prometheus.Registry, log *slog.Logger) {
	destination, v6 := appprobe.Destination(c.InstanceIPs, c.Health.ProbeLocalhost)
	for _, h := range appprobe.New(c.Health.AppProbes, appprobe.Options{
		Destination: destination, V6: v6, StatusPort: c.StatusAddress.Port(), KeepAlive: c.Health.ProbeKeepAlive, HTTP1: c.Health.ProbeHTTP1,
		Log: log,
	}) {
		s.Public(h.Path, "a probe of the application, for kubelet", h)
	}
	merge := metrics.Config{Targets: c.Health.ScrapeTargets, Registry: reg, LocalOnly: c.Health.LocalMetrics, Log: log}
	if admin != nil && c.Health.MergeEnvoy {
		merge.Envoy = admin
	}
	s.Public("/stats/prometheus", "the metrics of Envoy, the application and the agent", metrics.New(merge))
}

// tellHealth adds the task that probes the application as a WorkloadGroup asks and tells the control plane, if it asks.
// proxy, which may be nil, says whether the workload's proxy is ready.
func tellHealth(c *config.Config, p *service.Process, to *relay.Relay, proxy func(context.Context) error) {
	if c.Health.Readiness == nil {
		return
	}
	p.Task("health of the workload", health.New(health.Config{
		Probe: c.Health.Readiness, Addresses: c.InstanceIPs, Localhost: c.Health.ProbeLocalhost, Proxy: proxy, Tell: to.SetHealth, Log: p.Log,
	}).Run)
}

// verifyRedirection makes the prober wait until traffic is redirected, if the workload is to have rules for that.
func verifyRedirection(c *config.Config, p *service.Process, prober *readiness.Prober) {
	if !c.Health.VerifyRedirection {
		return
	}
	r := readiness.NewRedirection(len(c.InstanceIPs) > 0 && c.InstanceIPs[0].Is6(), nil, p.Log)
	prober.Require(r.Check)
	p.Task("redirection", r.Run)
}
