// Package config makes the agent's configuration. Parse reads the flags, environment, ProxyConfig and pod information
// of "node-agent proxy" and returns a checked Config; ParseRedirect does so for "node-agent init". Package command
// calls both. No other package of the agent reads the environment.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Role is the type of the proxy, the first part of the node id.
type Role string

// The roles, named as in Istio's agent: Router is a gateway.
const (
	Sidecar Role = "sidecar"
	Router  Role = "router"
)

// Config is the checked configuration of "node-agent proxy", with defaults applied. It is not changed after Parse.
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
	// Interception is how inbound connections reach a sidecar: REDIRECT, TPROXY or NONE.
	Interception string

	// DiscoveryAddresses are host:port of xds-servers, tried in random order.
	DiscoveryAddresses []string
	// DiscoveryIDs are the SPIFFE ids an xds-server may have.
	DiscoveryIDs []spiffeid.ID
	// CAAddress is "host:port[,host:port]" of the certificate authority.
	CAAddress string
	CAIDs     []spiffeid.ID
	// TokenFile holds the workload's JWT. It is read again for each use.
	TokenFile    string
	RootCertFile string
	// CacheCertificate keeps key and certificate in StateDir between runs.
	CacheCertificate bool
	SecretTTL        time.Duration
	// CredentialFetcher says where the token comes from, if not from TokenFile.
	CredentialFetcher CredentialFetcher
	STS               STS
	// Secrets says where key, certificate and roots come from besides.
	Secrets Secrets

	StateDir string
	// NoEnvoy means that no Envoy runs, because the workload is a proxyless gRPC program.
	NoEnvoy bool
	// GRPCBootstrap is the absolute path of the bootstrap of proxyless gRPC programs; "" if there are none.
	GRPCBootstrap string
	// CertificateDir is the absolute path of the directory for files of the workload's key, certificate and roots; ""
	// keeps them in memory.
	CertificateDir string
	EnvoyBinary    string
	// Concurrency is Envoy's number of worker threads, at least 1.
	Concurrency uint32
	// EnvoyRestarts is how often within five minutes Envoy is started again after it has ended by itself.
	EnvoyRestarts     int
	EnvoyLogLevel     string
	EnvoyComponentLog string
	EnvoyFileFlush    time.Duration
	// EnvoyFileFlushKB is how much of an access log Envoy buffers; 0 is Envoy's default.
	EnvoyFileFlushKB uint32
	// MaxDownstreamConnections is the limit of Envoy's overload manager.
	MaxDownstreamConnections uint64
	// DeltaXDS selects incremental xDS between Envoy and the xds-server.
	DeltaXDS bool
	// BootstrapXDS makes the agent fetch the bootstrap patches of EnvoyFilters from the xds-server before Envoy starts.
	BootstrapXDS bool
	// OnDemand makes the xds-server send only virtual hosts that the proxy asks for; nil is the mesh's setting.
	OnDemand *bool

	Envoy Envoy
	// Health configures probes, metrics and what the workload's readiness depends on.
	Health Health

	// DNS configures the DNS proxy; nil if there is none.
	DNS *DNS
	// LastGood configures package lastgood.
	LastGood LastGood

	// StatusAddress is the agent's own HTTP server, 15020.
	StatusAddress netip.AddrPort
	// ReadyAddress is Envoy's readiness listener, 15021.
	ReadyAddress netip.AddrPort
	// StatsAddress is Envoy's Prometheus listener, 15090.
	StatsAddress netip.AddrPort

	Drain    Drain
	LogLevel string
	// Warnings are to be logged: input that was accepted but is ignored.
	Warnings []string
}

// Drain says how long a terminating proxy goes on serving.
type Drain struct {
	// Envoy is Envoy's --drain-time-s, the time over which it closes connections.
	Envoy time.Duration
	// Termination is the time from SIGTERM to the end of Envoy. With ExitOnZero it is an upper bound, and 0 means none.
	Termination time.Duration
	// Minimum is how long to drain before ExitOnZero counts connections.
	Minimum time.Duration
	// ExitOnZero ends the drain as soon as no connection is in use.
	ExitOnZero bool
}

// maxConcurrency bounds Envoy's worker threads, since each takes memory and an annotation may set their number. The
// largest machines have as many CPUs.
const maxConcurrency = 1024

// Node metadata GENERATOR=grpc makes a control plane send the resources of proxyless gRPC programs.
const (
	metaGenerator = "GENERATOR"
	generatorGRPC = "grpc"
)

// metaInterception is the node metadata key of Interception.
const metaInterception = "INTERCEPTION_MODE"

// Identity is the SPIFFE ID for which the agent requests a certificate.
func (c *Config) Identity() (spiffeid.ID, error) {
	return spiffeid.FromSegments(c.TrustDomain, "ns", c.Namespace, "sa", c.ServiceAccount)
}

// validate returns all problems as one error, each with its remedy.
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
	need(c.EnvoyRestarts >= 0, "--proxy-restarts %d: want 0 or more", c.EnvoyRestarts)
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
