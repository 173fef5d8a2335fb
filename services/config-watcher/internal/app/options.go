package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/service"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/source/file"
)

// Options are config-watcher's flags.
type Options struct {
	service.Options

	GRPCAddress    string
	ConfigDirs     []string
	MeshConfigFile string
	StoreDir       string
	AuditLog       string
	RolesFile      string
	ResyncPeriod   time.Duration
	FileGrace      time.Duration

	SystemNamespace, ClusterID, DomainSuffix string

	CAAddress, CATokenFile, RootCertFile string
	StateDir                             string
	StoreKeyFile                         string

	JWKSFile, Issuer string
}

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{
		"trust-domain":    "trust domain of all identities, unless the mesh configuration names another",
		"admin-jwks-file": "keys that verify administrators' tokens for /debug (default: the value of --jwks-file)",
	})
	flags.StringVar(&o.GRPCAddress, "grpc-address", ":15060", "address of the gRPC port (TLS)")

	flags.StringArrayVar(&o.ConfigDirs, "config-dir", nil, "directory or file of YAML or JSON objects to read and follow (repeatable)")
	flags.StringVar(&o.MeshConfigFile, "mesh-config-file", "", "file with the mesh configuration; wins over ConfigMap istio-system/istio")
	flags.StringVar(&o.StoreDir, "store-dir", "", "directory that keeps the objects of the configuration API; empty: they are lost at the end of the process")
	flags.StringVar(&o.StoreKeyFile, "store-encryption-key-file", "", "file (0600) of keys, one a line, 32 bytes in base64 or hex, that encrypt Secrets in --store-dir and --state-dir: the first encrypts, all decrypt; empty: they are kept in the clear")
	flags.StringVar(&o.AuditLog, "audit-log", "", "file that keeps who wrote what through the configuration API; a write without its line is refused (default: audit/audit.log in --store-dir; else the process's log alone)")
	flags.StringVar(&o.RolesFile, "roles-file", "", "YAML file of who else may use the configuration API, and what for; followed (default: nobody but the administrator)")
	flags.DurationVar(&o.ResyncPeriod, "resync-period", file.DefaultResync, "how often all files are read again without a notification")

	flags.DurationVar(&o.FileGrace, "file-grace-period", file.DefaultGrace, "how long the objects of a file stay in force that is gone, empty or cut off; at least 1s")

	flags.StringVar(&o.SystemNamespace, "system-namespace", contract.SystemNamespace, "namespace of Fairlead's own service accounts")
	flags.StringVar(&o.ClusterID, "cluster-id", "Kubernetes", "id of the cluster that endpoints are attributed to")
	flags.StringVar(&o.DomainSuffix, "domain-suffix", "cluster.local", "DNS suffix of service names")

	flags.StringVar(&o.CAAddress, "ca-address", "127.0.0.1:15012", "address of the ca, or several divided by commas")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "", "file with the token that proves the own identity to the ca (audience istio-ca)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the trusted roots, PEM; followed (required)")
	flags.StringVar(&o.StateDir, "state-dir", "", "directory (0700) that keeps the own certificate, the sources' last good state and the number of the newest revision across restarts; empty: none is kept, and a source that cannot be read at the start is waited for")

	flags.StringVar(&o.JWKSFile, "jwks-file", "", "keys that verify the command line's tokens (RFC 7517, audience fairlead); empty: certificates only")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that tokens must name (required with --jwks-file)")
}

var clusterID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)

// config is the options, checked and parsed.
type config struct {
	Options
	trustDomain               spiffeid.TrustDomain
	own, ca, xdsServer, admin spiffeid.ID
}

// needed says what needs an identity, for the refusal of a ban on it; "" if nothing does.
func (c *config) needed(identity string) string {
	for id, what := range map[spiffeid.ID]string{
		c.own: "config-watcher", c.ca: "the ca", c.xdsServer: "the xds-servers", c.admin: "the first administrator",
	} {
		if id.String() == identity {
			return what
		}
	}
	return ""
}

// check reports everything that is wrong with the options at once.
func (o Options) check() (*config, error) {
	c := &config{Options: o}
	c.AdminJWKSFile, c.AdminIssuer = cmp.Or(o.AdminJWKSFile, o.JWKSFile), cmp.Or(o.AdminIssuer, o.Issuer)
	var errs service.FlagErrors
	c.trustDomain = c.Check(&errs)
	errs.Required("grpc-address", o.GRPCAddress)
	errs.Required("domain-suffix", o.DomainSuffix)
	errs.Required("system-namespace", o.SystemNamespace)
	errs.Required("root-cert-file", o.RootCertFile)
	errs.Required("ca-address", o.CAAddress)
	errs.AtLeast("resync-period", o.ResyncPeriod, time.Second)
	if o.FileGrace < file.MinGrace {
		errs.Add("file-grace-period", fmt.Errorf("%s is less than %s, which an editor may take to replace a file", o.FileGrace, file.MinGrace))
	}
	if !clusterID.MatchString(o.ClusterID) {
		errs.Add("cluster-id", fmt.Errorf("%q is not made of letters, digits, '-', '_' and '.'", o.ClusterID))
	}
	if o.JWKSFile != "" && o.Issuer == "" {
		errs.Add("issuer", errors.New("is required with --jwks-file"))
	}
	if c.AuditLog == "" && o.StoreDir != "" {
		c.AuditLog = filepath.Join(o.StoreDir, "audit", "audit.log")
	}
	seen := map[string]bool{}
	for _, dir := range o.ConfigDirs {
		if abs, err := filepath.Abs(dir); err != nil || seen[abs] {
			errs.Add("config-dir", fmt.Errorf("%s is given twice or cannot be resolved", dir))
		} else {
			seen[abs] = true
		}
	}
	if o.StoreDir != "" {
		if info, err := os.Stat(o.StoreDir); err == nil && !info.IsDir() {
			errs.Add("store-dir", fmt.Errorf("%s is no directory", o.StoreDir))
		}
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	for account, id := range map[string]*spiffeid.ID{
		contract.ConfigWatcherAccount: &c.own, contract.CAAccount: &c.ca, contract.XDSServerAccount: &c.xdsServer, contract.AdminAccount: &c.admin,
	} {
		var err error
		if *id, err = auth.WorkloadID(c.trustDomain, o.SystemNamespace, account); err != nil {
			return nil, fmt.Errorf("--system-namespace: %w", err)
		}
	}
	return c, nil
}
