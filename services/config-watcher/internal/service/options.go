// Package service wires config-watcher together.
package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/config-watcher/internal/source/file"
)

// Options are config-watcher's flags.
type Options struct {
	GRPCAddress, OpsAddress string
	LogLevel, OTLPEndpoint  string
	ShutdownGrace           time.Duration

	ConfigDirs     []string
	MeshConfigFile string
	StoreDir       string
	AuditLog       string
	RolesFile      string
	ResyncPeriod   time.Duration
	FileGrace      time.Duration

	TrustDomain, SystemNamespace string
	ClusterID, DomainSuffix      string

	CAAddress, CATokenFile, RootCertFile string
	StateDir                             string
	StoreKeyFile                         string

	JWKSFile, Issuer           string
	AdminJWKSFile, AdminIssuer string
}

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.GRPCAddress, "grpc-address", ":15060", "address of the gRPC port (TLS)")
	flags.StringVar(&o.OpsAddress, "ops-address", ":15014", "address of the HTTP port for metrics, probes and debugging")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.OTLPEndpoint, "otlp-endpoint", "", "where traces go (OTLP over gRPC); empty: nowhere")
	flags.DurationVar(&o.ShutdownGrace, "shutdown-grace", 10*time.Second, "how long running calls may take after SIGTERM")

	flags.StringArrayVar(&o.ConfigDirs, "config-dir", nil, "directory or file of YAML or JSON objects to read and follow (repeatable)")
	flags.StringVar(&o.MeshConfigFile, "mesh-config-file", "", "file with the mesh configuration; wins over ConfigMap istio-system/istio")
	flags.StringVar(&o.StoreDir, "store-dir", "", "directory that keeps the objects of the configuration API; empty: they are lost at the end of the process")
	flags.StringVar(&o.StoreKeyFile, "store-encryption-key-file", "", "file (0600) of keys, one a line, 32 bytes in base64 or hex, that encrypt Secrets in --store-dir and --state-dir: the first encrypts, all decrypt; empty: they are kept in the clear")
	flags.StringVar(&o.AuditLog, "audit-log", "", "file that keeps who wrote what through the configuration API; a write without its line is refused (default: audit/audit.log in --store-dir; else the process's log alone)")
	flags.StringVar(&o.RolesFile, "roles-file", "", "YAML file of who else may use the configuration API, and what for; followed (default: nobody but the administrator)")
	flags.DurationVar(&o.ResyncPeriod, "resync-period", file.DefaultResync, "how often all files are read again without a notification")

	flags.DurationVar(&o.FileGrace, "file-grace-period", file.DefaultGrace, "how long the objects of a file stay in force that is gone, empty or cut off; at least 1s")

	flags.StringVar(&o.TrustDomain, "trust-domain", "cluster.local", "trust domain of all identities, unless the mesh configuration names another")
	flags.StringVar(&o.SystemNamespace, "system-namespace", "istio-system", "namespace of Fairlead's own service accounts")
	flags.StringVar(&o.ClusterID, "cluster-id", "Kubernetes", "id of the cluster that endpoints are attributed to")
	flags.StringVar(&o.DomainSuffix, "domain-suffix", "cluster.local", "DNS suffix of service names")

	flags.StringVar(&o.CAAddress, "ca-address", "127.0.0.1:15012", "address of the ca, or several divided by commas")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "", "file with the token that proves the own identity to the ca (audience istio-ca)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the trusted roots, PEM; followed (required)")
	flags.StringVar(&o.StateDir, "state-dir", "", "directory (0700) that keeps the own certificate and the sources' last good state across restarts; empty: neither is kept, and a source that cannot be read at the start is waited for")

	flags.StringVar(&o.JWKSFile, "jwks-file", "", "keys that verify the command line's tokens (RFC 7517, audience fairlead); empty: certificates only")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that tokens must name (required with --jwks-file)")
	flags.StringVar(&o.AdminJWKSFile, "admin-jwks-file", "", "keys that verify administrators' tokens for /debug (default: the value of --jwks-file)")
	flags.StringVar(&o.AdminIssuer, "admin-issuer", "", "issuer that administrators' tokens must name (default: the value of --issuer)")
}

var clusterID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)

// config is the options, checked and parsed.
type config struct {
	Options
	trustDomain                spiffeid.TrustDomain
	own, ca, xdsServer, admins spiffeid.ID
}

// needed says for what the mesh needs an identity; "" if it does not.
func (c *config) needed(identity string) string {
	for id, what := range map[spiffeid.ID]string{
		c.own: "config-watcher", c.ca: "the ca", c.xdsServer: "the xds-servers", c.admins: "the first administrator",
	} {
		if id.String() == identity {
			return what
		}
	}
	return ""
}

// Check reports everything that is wrong with the options at once, without touching anything.
func Check(o Options) error {
	_, err := o.check()
	return err
}

func (o Options) check() (*config, error) {
	c := &config{Options: o}
	var errs []error
	fail := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	for flag, value := range map[string]string{"grpc-address": o.GRPCAddress, "ops-address": o.OpsAddress, "domain-suffix": o.DomainSuffix, "system-namespace": o.SystemNamespace, "root-cert-file": o.RootCertFile, "ca-address": o.CAAddress} {
		if value == "" {
			fail(flag, errors.New("is required"))
		}
	}
	if o.ResyncPeriod < time.Second {
		fail("resync-period", fmt.Errorf("%s is less than 1s", o.ResyncPeriod))
	}
	if o.FileGrace < file.MinGrace {
		fail("file-grace-period", fmt.Errorf("%s is less than %s, which an editor may take to replace a file", o.FileGrace, file.MinGrace))
	}
	if o.ShutdownGrace < 0 {
		fail("shutdown-grace", fmt.Errorf("%s is negative", o.ShutdownGrace))
	}
	if !clusterID.MatchString(o.ClusterID) {
		fail("cluster-id", fmt.Errorf("%q is not made of letters, digits, '-', '_' and '.'", o.ClusterID))
	}
	if o.JWKSFile != "" && o.Issuer == "" {
		fail("issuer", errors.New("is required with --jwks-file"))
	}
	if c.AdminJWKSFile == "" {
		c.AdminJWKSFile = o.JWKSFile
	}
	if c.AdminIssuer == "" {
		c.AdminIssuer = o.Issuer
	}
	if c.AdminJWKSFile != "" && c.AdminIssuer == "" {
		fail("admin-issuer", errors.New("is required with --admin-jwks-file"))
	}
	if c.AuditLog == "" && o.StoreDir != "" {
		c.AuditLog = filepath.Join(o.StoreDir, "audit", "audit.log")
	}
	seen := map[string]bool{}
	for _, dir := range o.ConfigDirs {
		if abs, err := filepath.Abs(dir); err != nil || seen[abs] {
			fail("config-dir", fmt.Errorf("%s is given twice or cannot be resolved", dir))
		} else {
			seen[abs] = true
		}
	}
	if o.StoreDir != "" {
		if info, err := os.Stat(o.StoreDir); err == nil && !info.IsDir() {
			fail("store-dir", fmt.Errorf("%s is no directory", o.StoreDir))
		}
	}
	td, err := spiffeid.TrustDomainFromString(o.TrustDomain)
	fail("trust-domain", err)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.trustDomain = td
	for account, id := range map[string]*spiffeid.ID{"config-watcher": &c.own, "ca": &c.ca, "xds-server": &c.xdsServer, "fairlead-admin": &c.admins} {
		if *id, err = auth.WorkloadID(td, o.SystemNamespace, account); err != nil {
			return nil, fmt.Errorf("--system-namespace: %w", err)
		}
	}
	return c, nil
}
