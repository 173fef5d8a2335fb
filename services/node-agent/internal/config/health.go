package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/node-agent/internal/appprobe"
	"fairlead.dev/services/node-agent/internal/metrics"
)

// Health is what the agent needs to tell others how the workload is.
type Health struct {
	// AppProbes are kubelet's probes of the application, which the agent answers.
	AppProbes []*appprobe.Probe
	// ProbeLocalhost sends them to localhost, not to the workload's address; ProbeKeepAlive keeps the connections of
	// HTTP probes; ProbeHTTP1 leaves HTTP/2 out of HTTPS probes.
	ProbeLocalhost, ProbeKeepAlive, ProbeHTTP1 bool

	// ScrapeTargets are the application's endpoints with metrics.
	ScrapeTargets []metrics.Target
	// MergeEnvoy puts Envoy's metrics into the agent's.
	MergeEnvoy bool
	// LocalMetrics answers only scrapes from this machine.
	LocalMetrics bool

	// Readiness is the probe of ProxyConfig, which decides about the health of the WorkloadEntry; nil without one.
	Readiness *ReadinessProbe

	// VerifyRedirection makes readiness wait until connections are seen to be redirected to the proxy.
	VerifyRedirection bool
}

// ReadinessProbe is a checked probe of a WorkloadGroup, with defaults applied.
type ReadinessProbe struct {
	*networking.ReadinessProbe
	InitialDelay, Period, Timeout time.Duration
	// Success and Failure are thresholds, at least 1.
	Success, Failure int
}

// Bounds of a readiness probe.
const (
	maxProbeSeconds   = 24 * 60 * 60
	maxProbeThreshold = 1000
)

// parseHealth sets c.Health. Flags, environment and ProxyConfig have been read.
func (c *Config) parseHealth(env *environment) error {
	h := &c.Health
	var errs []error
	var err error
	if c.Role == Sidecar { // kubelet's probes of a gateway are Envoy's own, and a gateway has no application
		h.AppProbes, err = appprobe.Parse(env.get(appprobe.Variable), c.StatusAddress.Port())
		errs = append(errs, err)
		h.ScrapeTargets, err = metrics.ParseTargets(env.get(metrics.Variable), c.StatusAddress.Port(), c.ReadyAddress.Port(),
			c.StatsAddress.Port())
		errs = append(errs, err)
	}
	h.ProbeLocalhost = env.boolean("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", false)
	h.ProbeKeepAlive = env.boolean("ENABLE_PROBE_KEEPALIVE_CONNECTIONS", false)
	h.ProbeHTTP1 = !env.boolean("ISTIO_ENABLE_HTTP2_PROBING", true)
	h.MergeEnvoy = env.boolean("PILOT_AGENT_MERGE_ENVOY_STATS", true)
	h.LocalMetrics = env.boolean("METRICS_LOCALHOST_ACCESS_ONLY", false)
	if h.Readiness, err = readinessProbe(c.ProxyConfig.GetReadinessProbe()); err != nil {
		errs = append(errs, fmt.Errorf("ProxyConfig: readinessProbe.%w", err))
	}
	redirected := c.Role == Sidecar && !c.NoEnvoy && c.Interception != meshv1alpha1.ProxyConfig_NONE.String()
	h.VerifyRedirection = env.boolean("FAIRLEAD_VERIFY_REDIRECTION", redirected) && redirected
	return errors.Join(errs...)
}

// readinessProbe checks a probe and applies Istio's defaults. Its error begins with the field.
func readinessProbe(p *networking.ReadinessProbe) (*ReadinessProbe, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	var errs []error
	number := func(field string, n, def, most int32) int {
		if n < 0 || n > most {
			errs = append(errs, fmt.Errorf("%s %d: want 0 to %d", field, n, most))
		}
		return int(cmp.Or(n, def))
	}
	seconds := func(field string, n, def int32) time.Duration {
		return time.Duration(number(field, n, def, maxProbeSeconds)) * time.Second
	}
	out := &ReadinessProbe{
		ReadinessProbe: p,
		InitialDelay:   seconds("initialDelaySeconds", p.GetInitialDelaySeconds(), 0),
		Period:         seconds("periodSeconds", p.GetPeriodSeconds(), 10),
		Timeout:        seconds("timeoutSeconds", p.GetTimeoutSeconds(), 1),
		Success:        number("successThreshold", p.GetSuccessThreshold(), 1, maxProbeThreshold),
		Failure:        number("failureThreshold", p.GetFailureThreshold(), 1, maxProbeThreshold),
	}
	port := func(field string, n uint32) {
		if n < 1 || n > 65535 {
			errs = append(errs, fmt.Errorf("%s.port %d: want 1 to 65535", field, n))
		}
	}
	switch m := p.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		port("httpGet", m.HttpGet.GetPort())
		if s := strings.ToUpper(m.HttpGet.GetScheme()); !slices.Contains([]string{"", "HTTP", "HTTPS"}, s) {
			errs = append(errs, fmt.Errorf("httpGet.scheme %.64q: want HTTP or HTTPS", m.HttpGet.GetScheme()))
		}
	case *networking.ReadinessProbe_TcpSocket:
		port("tcpSocket", m.TcpSocket.GetPort())
	case *networking.ReadinessProbe_Grpc:
		port("grpc", m.Grpc.GetPort())
	case *networking.ReadinessProbe_Exec:
		if len(m.Exec.GetCommand()) == 0 || m.Exec.GetCommand()[0] == "" {
			errs = append(errs, errors.New("exec.command is empty: want a program and its arguments"))
		}
	default:
		errs = append(errs, errors.New("httpGet, tcpSocket, grpc or exec is missing: set one"))
	}
	return out, errors.Join(errs...)
}
