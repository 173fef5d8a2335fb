// Package config turns the agent's flags, environment, ProxyConfig and pod
// information into one validated Config. It reads each of them once; nothing
// else in the agent looks at the environment.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Role is what the proxy is for; it is the first part of the node id.
type Role string

// The roles Envoy can be started in. Istio's agent uses the same words.
const (
	Sidecar Role = "sidecar"
	Router  Role = "router"
)

// Config is everything the agent was told, checked and with defaults applied.
// It is not changed after Parse returns it.
type Config struct {
	Role           Role
	PodName        string
	Namespace      string
	ServiceAccount string
	TrustDomain    spiffeid.TrustDomain
	// InstanceIPs are the workload's addresses; the first is in the node id.
	InstanceIPs []netip.Addr
	// DNSDomain is the last part of the node id, "<ns>.svc.cluster.local".
	DNSDomain   string
	Labels      map[string]string
	Annotations map[string]string
	// Meta holds ISTIO_META_* and ISTIO_METAJSON_* as node metadata keys.
	Meta        map[string]any
	ProxyConfig *meshv1alpha1.ProxyConfig
	// Interception is how inbound connections get to a sidecar: REDIRECT, TPROXY or NONE.
	Interception string

	// DiscoveryAddresses are host:port of xds-servers, tried in random order.
	DiscoveryAddresses []string
	// DiscoveryIDs are the SPIFFE ids an xds-server may have.
	DiscoveryIDs []spiffeid.ID
	// CAAddress is "host:port[,host:port]" of the certificate authority.
	CAAddress string
	CAIDs     []spiffeid.ID
	// TokenFile holds the workload's JWT; read again for each use.
	TokenFile    string
	RootCertFile string
	// CacheCertificate keeps key and certificate in StateDir between runs.
	CacheCertificate bool
	SecretTTL        time.Duration

	StateDir string
	// NoEnvoy is set for workloads that speak xDS themselves: no Envoy runs.
	NoEnvoy bool
	// GRPCBootstrap is the absolute path of the bootstrap of gRPC programs that
	// speak xDS themselves; "" where there are none.
	GRPCBootstrap string
	// CertificateDir is the absolute path of the directory with the workload's
	// key, certificate and roots in files; "" keeps them in memory.
	CertificateDir string
	EnvoyBinary    string
	// Concurrency is Envoy's number of worker threads, at least 1.
	Concurrency       uint32
	EnvoyLogLevel     string
	EnvoyComponentLog string
	EnvoyFileFlush    time.Duration
	// EnvoyFileFlushKB is how much of an access log Envoy keeps back at most; 0 leaves it to Envoy.
	EnvoyFileFlushKB uint32
	// MaxDownstreamConnections is the limit of Envoy's overload manager.
	MaxDownstreamConnections uint64
	// DeltaXDS selects incremental xDS between Envoy and the xds-server.
	DeltaXDS bool
	// BootstrapXDS has the agent ask the xds-server, before Envoy starts, what EnvoyFilters change of the bootstrap.
	BootstrapXDS bool
	// OnDemand is whether this proxy is to be sent only what it calls; nil leaves it to the mesh.
	OnDemand *bool

	// DNS is what the agent answers the workload's DNS queries with; nil where it does not.
	DNS *DNS

	// StatusAddress is the agent's own HTTP server, 15020.
	StatusAddress netip.AddrPort
	// ReadyAddress is Envoy's readiness listener, 15021.
	ReadyAddress netip.AddrPort
	// StatsAddress is Envoy's Prometheus listener, 15090.
	StatsAddress netip.AddrPort

	Drain    Drain
	LogLevel string
	// Warnings are remarks about accepted but doubtful input, to be logged.
	Warnings []string
}

// Drain says how long a terminating proxy goes on serving.
type Drain struct {
	// Envoy is Envoy's --drain-time-s: how gradually connections are closed.
	Envoy time.Duration
	// Termination is the time between SIGTERM and the end of Envoy. With
	// ExitOnZero it is an upper bound, and zero means no bound.
	Termination time.Duration
	// Minimum is how long to drain before looking for zero connections.
	Minimum time.Duration
	// ExitOnZero ends the drain as soon as no connection is in use.
	ExitOnZero bool
}

// maxConcurrency bounds Envoy's worker threads: as many as the largest machines have CPUs. An annotation may ask for
// them, and they take memory each.
const maxConcurrency = 1024

// metaGenerator is the metadata that makes control planes answer a node with
// what gRPC programs understand.
const (
	metaGenerator = "GENERATOR"
	generatorGRPC = "grpc"
)

// metaInterception is the metadata that says how inbound connections get to the proxy.
const metaInterception = "INTERCEPTION_MODE"

// Identity is the SPIFFE id the workload must be given by the CA.
func (c *Config) Identity() (spiffeid.ID, error) {
	return spiffeid.FromSegments(c.TrustDomain, "ns", c.Namespace, "sa", c.ServiceAccount)
}

// validate reports every problem at once, each with its remedy.
func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(c.Role == Sidecar || c.Role == Router, "proxy role %q: want %q or %q", c.Role, Sidecar, Router)
	need(c.PodName != "", "POD_NAME is not set: set it to the name of the workload instance")
	need(c.Namespace != "", "POD_NAMESPACE is not set: set it to the workload's namespace")
	need(len(c.InstanceIPs) > 0, "no address found for this workload: set INSTANCE_IP")
	if _, err := c.Identity(); err != nil && c.Namespace != "" {
		errs = append(errs, fmt.Errorf("POD_NAMESPACE %q and SERVICE_ACCOUNT %q make no SPIFFE id: %w", c.Namespace, c.ServiceAccount, err))
	}
	_, known := meshv1alpha1.ProxyConfig_InboundInterceptionMode_value[c.Interception]
	need(known, "interception mode %q (%s%s): want REDIRECT, TPROXY or NONE", c.Interception, metaPrefix, metaInterception)
	need(!c.NoEnvoy || c.Role == Sidecar, "DISABLE_ENVOY with the role %q: a gateway is an Envoy", c.Role)
	need(c.Concurrency <= maxConcurrency, "concurrency %d, of --concurrency or ProxyConfig: want at most %d", c.Concurrency, maxConcurrency)
	need(c.EnvoyBinary != "" || c.NoEnvoy, "no Envoy binary: give --envoy-binary")
	need(c.StateDir != "", "no state directory: give --state-dir")
	need(c.RootCertFile != "", "no root certificate file: give --root-cert-file")
	need(c.SecretTTL >= time.Minute, "SECRET_TTL %s: want at least 1m", c.SecretTTL)
	need(c.EnvoyFileFlush >= time.Millisecond, "--proxy-file-flush-interval, or fileFlushInterval, %s: want at least 1ms", c.EnvoyFileFlush)
	need(c.Drain.Envoy >= time.Second, "drainDuration %s: want at least 1s", c.Drain.Envoy)
	need(c.Drain.Termination >= 0, "TERMINATION_DRAIN_DURATION_SECONDS %s: want 0 or more", c.Drain.Termination)
	need(c.Drain.Minimum >= 0, "MINIMUM_DRAIN_DURATION %s: want 0s or more", c.Drain.Minimum)
	ports := map[netip.AddrPort]string{}
	for _, l := range []struct {
		name string
		addr netip.AddrPort
	}{
		{"status address (--status-address)", c.StatusAddress},
		{"readiness address (ENVOY_STATUS_PORT)", c.ReadyAddress},
		{"Envoy metrics address (ENVOY_PROMETHEUS_PORT)", c.StatsAddress},
	} {
		need(l.addr.IsValid() && l.addr.Port() != 0, "%s: no address and port", l.name)
		if other, taken := ports[l.addr]; taken && l.addr.IsValid() {
			errs = append(errs, fmt.Errorf("%s and %s are both %s: give one of them another port", other, l.name, l.addr))
		}
		ports[l.addr] = l.name
	}
	return errors.Join(errs...)
}
