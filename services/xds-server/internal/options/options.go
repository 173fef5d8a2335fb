// Package options is what xds-server is told by its flags, checked once.
package options

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/xds-server/internal/balance"
	"fairlead.dev/services/xds-server/internal/serve"
)

// adminAccount is the service account that operators' tools act as, in xds-server's own namespace.
const adminAccount = "fairlead-admin"

// maxLimit bounds the limits themselves: a number far beyond any use, with which no product overflows.
const maxLimit = 1 << 24

// Options are the flags as given.
type Options struct {
	SecureAddress, PlaintextAddress, OpsAddress    string
	LogLevel, OTLPEndpoint                         string
	ConfigWatcherAddress                           string
	Instance                                       string
	TrustDomain, Identity                          string
	CAAddress, CATokenFile, RootCertFile           string
	StateDir                                       string
	JWKSFile, Issuer                               string
	AdminJWKSFile, AdminIssuer                     string
	Peers                                          []string
	RebalancePeriod                                time.Duration
	MaxConnectionAge                               time.Duration
	MaxOnDemandHosts, MaxUnsentMiB, MaxResponseMiB int
	MinIdentityStreams, MaxAddressStreams          int
	MaxNamesMiB                                    int
	ShutdownGrace                                  time.Duration
	ForwardCertificateRequests                     bool
	TLSMinVersion                                  string
	DebugIdentities                                []string
}

// AddFlags declares the flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.SecureAddress, "secure-address", ":15012", "address of the ADS port: mutual TLS, or TLS with a token")
	flags.StringVar(&o.PlaintextAddress, "plaintext-address", "", "address of an ADS port without TLS and without authentication, usually :15010; empty: off")
	flags.StringVar(&o.OpsAddress, "ops-address", ":15014", "address of the HTTP port for metrics, probes and debugging")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.OTLPEndpoint, "otlp-endpoint", "", "where traces go (OTLP over gRPC); empty: nowhere")

	flags.StringVar(&o.ConfigWatcherAddress, "config-watcher-address", "", "host:port of config-watcher, or a list of them (required)")
	flags.StringVar(&o.Instance, "instance", "", "name of this process in statuses (default: the host's name)")
	flags.StringVar(&o.TrustDomain, "trust-domain", "cluster.local", "trust domain of all identities")
	flags.StringVar(&o.Identity, "identity", "istio-system/xds-server", "xds-server's own identity, namespace/service-account")
	flags.StringVar(&o.CAAddress, "ca-address", "", "host:port of ca, or a list of them (required)")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "", "token that proves the own identity to ca (audience istio-ca); followed while xds-server runs")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "PEM file of the roots of trust; followed while xds-server runs (required)")
	flags.StringVar(&o.StateDir, "state-dir", "", "directory, 0700, that keeps the own certificate over restarts; empty: it is kept in memory")
	flags.StringVar(&o.JWKSFile, "jwks-file", "", "keys that verify proxies' tokens (audience istio-ca); empty: only client certificates are accepted")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that tokens must name (required with --jwks-file)")
	flags.StringVar(&o.AdminJWKSFile, "admin-jwks-file", "", "keys that verify operators' tokens for /debug (audience fairlead); empty: /debug is closed")
	flags.StringVar(&o.AdminIssuer, "admin-issuer", "", "issuer that operators' tokens must name (default: the value of --issuer)")

	flags.BoolVar(&o.ForwardCertificateRequests, "forward-certificate-requests", true,
		"answer workloads' certificate requests on the ADS port by asking ca with the token that the workload sent")
	flags.StringVar(&o.TLSMinVersion, "tls-min-version", tlsconf.Version13,
		"lowest TLS version of the ADS port: 1.3, or 1.2 with the cipher suites that FIPS 140-3 approves")
	flags.StringArrayVar(&o.DebugIdentities, "debug-identities", nil,
		"who may ask for Istio's debug types (istio.io/debug) on the ADS port besides fairlead-admin: namespace/service-account (repeatable)")

	flags.StringSliceVar(&o.Peers, "peers", nil,
		"host:port of the secure ports of all xds-servers, between which proxies are balanced; a name stands for all its addresses, looked up regularly; empty: no balancing")
	flags.DurationVar(&o.RebalancePeriod, "rebalance-period", balance.DefaultPeriod,
		"how often, give or take a fifth, peers are asked for their load and excess streams to move to them; at least 1s")
	flags.DurationVar(&o.MaxConnectionAge, "max-connection-age", serve.DefaultMaxConnectionAge,
		"how long, give or take a tenth, a proxy's stream lives before it is asked to reconnect; negative: until its certificate expires")
	flags.IntVar(&o.MaxOnDemandHosts, "max-on-demand-hosts", serve.DefaultMaxOnDemandHosts,
		"how many hosts one on-demand proxy may ask for; further ones are answered with \"not found\"")
	flags.IntVar(&o.MaxUnsentMiB, "max-unsent-mib", serve.DefaultMaxUnsentBytes>>20,
		"MiB, over all proxies, of responses that the network has not taken yet; proxies beyond it wait, those with their first configuration least")
	flags.IntVar(&o.MaxResponseMiB, "max-response-mib", serve.DefaultMaxResponseBytes>>20,
		"MiB at about which a response is cut in parts, for types whose resources a proxy waits for one by one")
	flags.IntVar(&o.MinIdentityStreams, "min-identity-streams", serve.DefaultMinStreams,
		"how many streams any identity may have; one of many workloads may have three for each of them; names and classes are allowed accordingly")
	flags.IntVar(&o.MaxAddressStreams, "max-address-streams", serve.DefaultMaxAddressStreams,
		"how many streams one address may have on the plaintext port")
	flags.IntVar(&o.MaxNamesMiB, "max-names-mib", serve.DefaultMaxNamesBytes>>20,
		"MiB, over all proxies, for names that they ask for and the mesh does not list for them; beyond it who has more than an equal share is refused")
	flags.DurationVar(&o.ShutdownGrace, "shutdown-grace", 5*time.Second, "how long open calls may take to end on SIGTERM")
}

// Config is the options, checked and parsed.
type Config struct {
	Options
	Domain spiffeid.TrustDomain
	// Own identity, and those of the peers, which live in the same namespace.
	Own, CA, ConfigWatcher, Admin spiffeid.ID
	// Debuggers may ask for Istio's debug types; the administrator is the first.
	Debuggers []spiffeid.ID
	// MinTLS is the lowest version of TLS on the ADS port.
	MinTLS uint16
}

// Check reports everything that is wrong with the options at once.
func (o Options) Check() (*Config, error) {
	var errs []error
	fail := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	required := func(flag, value string) {
		if value == "" {
			fail(flag, errors.New("is required"))
		}
	}
	required("secure-address", o.SecureAddress)
	required("ops-address", o.OpsAddress)
	required("config-watcher-address", o.ConfigWatcherAddress)
	required("ca-address", o.CAAddress)
	required("root-cert-file", o.RootCertFile)
	if o.CATokenFile == "" && o.StateDir == "" {
		fail("ca-token-file", errors.New("is required unless --state-dir holds a valid certificate"))
	}
	if o.JWKSFile != "" {
		required("issuer", o.Issuer)
	}
	c := &Config{Options: o}
	if c.AdminIssuer == "" {
		c.AdminIssuer = o.Issuer
	}
	if o.AdminJWKSFile != "" && c.AdminIssuer == "" {
		fail("admin-issuer", errors.New("is required with --admin-jwks-file"))
	}
	for _, p := range o.Peers {
		if host, port, err := net.SplitHostPort(p); err != nil || host == "" || port == "" {
			fail("peers", fmt.Errorf("%q is not host:port", p))
		}
	}
	if o.RebalancePeriod < time.Second && len(o.Peers) > 0 {
		fail("rebalance-period", errors.New("must be at least 1s; without --peers nothing is balanced"))
	}
	if o.MaxConnectionAge == 0 {
		fail("max-connection-age", errors.New("must not be 0; a negative duration means for ever"))
	}
	limit := func(flag string, n int) {
		if n < 1 || n > maxLimit {
			fail(flag, fmt.Errorf("must be from 1 to %d, is %d", maxLimit, n))
		}
	}
	limit("max-on-demand-hosts", o.MaxOnDemandHosts)
	limit("max-unsent-mib", o.MaxUnsentMiB)
	limit("max-response-mib", o.MaxResponseMiB)
	limit("min-identity-streams", o.MinIdentityStreams)
	limit("max-address-streams", o.MaxAddressStreams)
	limit("max-names-mib", o.MaxNamesMiB)
	if o.ShutdownGrace < 0 {
		fail("shutdown-grace", errors.New("must not be negative"))
	}
	if o.Instance == "" {
		host, err := os.Hostname()
		fail("instance", err)
		c.Instance = host
	}
	var err error
	c.MinTLS, err = tlsconf.ParseVersion(o.TLSMinVersion)
	fail("tls-min-version", err)
	fail("trust-domain", c.identities())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) identities() error {
	td, err := spiffeid.TrustDomainFromString(c.TrustDomain)
	if err != nil {
		return err
	}
	c.Domain = td
	namespace, account, ok := strings.Cut(c.Identity, "/")
	if !ok {
		return fmt.Errorf("--identity: %q is not namespace/service-account", c.Identity)
	}
	for _, id := range []struct {
		to      *spiffeid.ID
		account string
	}{{&c.Own, account}, {&c.CA, "ca"}, {&c.ConfigWatcher, "config-watcher"}, {&c.Admin, adminAccount}} {
		if *id.to, err = auth.WorkloadID(td, namespace, id.account); err != nil {
			return fmt.Errorf("--identity: %w", err)
		}
	}
	c.Debuggers = []spiffeid.ID{c.Admin}
	for _, text := range c.DebugIdentities {
		namespace, account, ok := strings.Cut(text, "/")
		if !ok {
			return fmt.Errorf("--debug-identities: %q is not namespace/service-account", text)
		}
		id, err := auth.WorkloadID(td, namespace, account)
		if err != nil {
			return fmt.Errorf("--debug-identities: %w", err)
		}
		c.Debuggers = append(c.Debuggers, id)
	}
	return nil
}
