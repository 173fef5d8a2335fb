package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/serve"
)

// maxLimit bounds the values of limits, so that no product of two overflows.
const maxLimit = 1 << 24

// Options are the flags as given.
type Options struct {
	service.Options

	SecureAddress, PlaintextAddress             string
	ConfigWatcherAddress                        string
	Instance                                    string
	Identity, CAIdentity, ConfigWatcherIdentity string
	CAAddress, CATokenFile, RootCertFile        string
	StateDir                                    string
	JWKSFile, Issuer, RemoteClustersFile        string
	Peers                                       []string
	MaxConnectionAge                            time.Duration
	MaxOnDemandHosts, MaxUnsentMiB              int
	MaxAddressStreams                           int
	ForwardCertificateRequests                  bool
	TLSMinVersion                               string
	DebugIdentities                             []string
	// RebalancePeriod has no flag; 0 means balance.DefaultPeriod.
	RebalancePeriod time.Duration
}

// AddFlags declares the flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.ShutdownGrace = 5 * time.Second
	o.Options.AddFlags(flags, service.Help{
		"shutdown-grace":  "how long open calls may take to end on SIGTERM",
		"admin-jwks-file": "keys that verify operators' tokens for /debug (audience fairlead); empty: /debug is closed",
		"admin-issuer":    "issuer that operators' tokens must name (default: the value of --issuer)",
	})
	flags.StringVar(&o.SecureAddress, "secure-address", ":15012", "address of the ADS port: mutual TLS, or TLS with a token")
	flags.StringVar(&o.PlaintextAddress, "plaintext-address", "",
		"address of an ADS port without TLS and without authentication, usually :15010; empty: off")

	flags.StringVar(&o.ConfigWatcherAddress, "config-watcher-address", "", "host:port of config-watcher, or a list of them (required)")
	flags.StringVar(&o.Instance, "instance", "", "name of this process in statuses (default: the host's name)")
	flags.StringVar(&o.Identity, "identity", "istio-system/xds-server", "xds-server's own identity, namespace/service-account")
	flags.StringVar(&o.CAIdentity, "ca-identity", "",
		"the ca's identity, namespace/service-account (default: ca in the namespace of --identity)")
	flags.StringVar(&o.ConfigWatcherIdentity, "config-watcher-identity", "",
		"config-watcher's identity, namespace/service-account (default: config-watcher in the namespace of --identity)")
	flags.StringVar(&o.CAAddress, "ca-address", "", "host:port of ca, or a list of them (required)")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "",
		"token that proves the own identity to ca (audience istio-ca); followed while xds-server runs")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "PEM file of the roots of trust; followed while xds-server runs (required)")
	flags.StringVar(&o.StateDir, "state-dir", "", "directory, 0700, that keeps the own certificate over restarts; empty: it is kept in memory")
	flags.StringVar(&o.JWKSFile, "jwks-file", "",
		"keys that verify proxies' tokens (audience istio-ca); empty: only client certificates are accepted")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that tokens must name (required with --jwks-file)")

	flags.StringVar(&o.RemoteClustersFile, "remote-clusters-file", "",
		"JSON file of the remote clusters whose tokens count, as the ca writes it; followed; it may be missing (default: none)")

	flags.BoolVar(&o.ForwardCertificateRequests, "forward-certificate-requests", true,
		"answer workloads' certificate requests on the ADS port by asking ca with the token that the workload sent")
	flags.StringVar(&o.TLSMinVersion, "tls-min-version", tlsconf.Version13,
		"lowest TLS version of the ADS port: 1.3, or 1.2 with the cipher suites that FIPS 140-3 approves")
	flags.StringArrayVar(&o.DebugIdentities, "debug-identities", nil,
		"who may ask for Istio's debug types (istio.io/debug) on the ADS port besides fairlead-admin: namespace/service-account (repeatable)")

	flags.StringSliceVar(&o.Peers, "peers", nil,
		"host:port of the secure ports of all xds-servers, between which proxies are balanced; a name stands for all its addresses, looked up "+
			"regularly; empty: no balancing")
	flags.DurationVar(&o.MaxConnectionAge, "max-connection-age", serve.DefaultMaxStreamAge,
		"how long, give or take a tenth, a proxy's stream lives before it is asked to reconnect; negative: until its certificate expires")
	flags.IntVar(&o.MaxOnDemandHosts, "max-on-demand-hosts", serve.DefaultMaxOnDemandHosts,
		"how many hosts one on-demand proxy may ask for; further ones are answered with \"not found\"")
	flags.IntVar(&o.MaxUnsentMiB, "max-unsent-mib", serve.DefaultMaxUnsentBytes>>20,
		"MiB, over all proxies, of responses that the network has not taken yet; proxies beyond it wait, those with their first configuration "+
			"least")
	flags.IntVar(&o.MaxAddressStreams, "max-address-streams", serve.DefaultMaxAddressStreams,
		"how many streams one address may have on the plaintext port")
}

// config is the options, checked and parsed.
type config struct {
	Options
	trustDomain spiffeid.TrustDomain
	// own is the identity of this xds-server and of its peers.
	own, ca, configWatcher, admin spiffeid.ID
	// debuggers may ask for Istio's debug types; the administrator is the first.
	debuggers []spiffeid.ID
	// minTLS is the lowest version of TLS on the ADS port.
	minTLS uint16
}

// reserved reports whether an account is one of the mesh's own services: no token of a remote cluster proves such an
// identity.
func (c *config) reserved(namespace, account string) bool {
	for _, own := range []spiffeid.ID{c.own, c.ca, c.configWatcher} {
		if of, _, ok := auth.WorkloadOf(own); ok && of == namespace {
			return true
		}
	}
	return slices.ContainsFunc(c.debuggers, func(id spiffeid.ID) bool {
		ns, name, ok := auth.WorkloadOf(id)
		return ok && ns == namespace && name == account
	})
}

// check reports everything that is wrong with the options at once.
func (o Options) check() (*config, error) {
	c := &config{Options: o}
	c.AdminIssuer = cmp.Or(o.AdminIssuer, o.Issuer)
	var errs service.FlagErrors
	c.trustDomain = c.Check(&errs)
	errs.Required("secure-address", o.SecureAddress)
	errs.Required("config-watcher-address", o.ConfigWatcherAddress)
	errs.Required("ca-address", o.CAAddress)
	errs.Required("root-cert-file", o.RootCertFile)
	if o.CATokenFile == "" && o.StateDir == "" {
		errs.Add("ca-token-file", errors.New("is required unless --state-dir holds a valid certificate"))
	}
	if o.JWKSFile != "" {
		errs.Required("issuer", o.Issuer)
	} else if o.RemoteClustersFile != "" {
		errs.Add("remote-clusters-file", errors.New("has no effect without --jwks-file"))
	}
	for _, p := range o.Peers {
		if host, port, err := net.SplitHostPort(p); err != nil || host == "" || port == "" {
			errs.Add("peers", fmt.Errorf("%q is not host:port", p))
		}
	}
	if o.MaxConnectionAge == 0 {
		errs.Add("max-connection-age", errors.New("must not be 0; a negative duration means for ever"))
	}
	limit := func(flag string, n int) {
		if n < 1 || n > maxLimit {
			errs.Add(flag, fmt.Errorf("must be from 1 to %d, is %d", maxLimit, n))
		}
	}
	limit("max-on-demand-hosts", o.MaxOnDemandHosts)
	limit("max-unsent-mib", o.MaxUnsentMiB)
	limit("max-address-streams", o.MaxAddressStreams)
	if o.Instance == "" {
		host, err := os.Hostname()
		errs.Add("instance", err)
		c.Instance = host
	}
	var err error
	c.minTLS, err = tlsconf.ParseVersion(o.TLSMinVersion)
	errs.Add("tls-min-version", err)
	if !c.trustDomain.IsZero() {
		c.identities(&errs)
	}
	return c, errs.Err()
}

// identities works out the identities that the options name, in the trust domain.
func (c *config) identities(errs *service.FlagErrors) {
	id := func(flag, namespace, account string) spiffeid.ID {
		id, err := auth.WorkloadID(c.trustDomain, namespace, account)
		errs.Add(flag, err)
		return id
	}
	workload := func(flag, text string) (namespace, account string, ok bool) {
		if namespace, account, ok = strings.Cut(text, "/"); !ok {
			errs.Add(flag, fmt.Errorf("%q is not namespace/service-account", text))
		}
		return namespace, account, ok
	}
	namespace, account, ok := workload("identity", c.Identity)
	if !ok {
		return
	}
	c.own = id("identity", namespace, account)
	for _, i := range []struct {
		id                  *spiffeid.ID
		flag, text, account string
	}{{&c.ca, "ca-identity", c.CAIdentity, contract.CAAccount},
		{&c.configWatcher, "config-watcher-identity", c.ConfigWatcherIdentity, contract.ConfigWatcherAccount}} {
		if i.text == "" {
			*i.id = id("identity", namespace, i.account)
		} else if namespace, account, ok := workload(i.flag, i.text); ok {
			*i.id = id(i.flag, namespace, account)
		}
	}
	c.admin = id("identity", namespace, contract.AdminAccount)
	c.debuggers = []spiffeid.ID{c.admin}
	for _, text := range c.DebugIdentities {
		if namespace, account, ok := workload("debug-identities", text); ok {
			c.debuggers = append(c.debuggers, id("debug-identities", namespace, account))
		}
	}
}
