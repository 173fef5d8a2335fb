package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/gatewayname"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/quota"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/source/remote"
)

// Options are config-watcher's flags.
type Options struct {
	service.Options

	GRPCAddress    string
	Peers          []string
	ConfigDirs     []string
	MeshConfigFile string
	StoreDir       string
	AuditLog       string
	RolesFile      string
	ResyncPeriod   time.Duration
	FileGrace      time.Duration

	// Kubernetes is true if an API server is a source.
	Kubernetes                             bool
	Kubeconfig, KubeContext, IstioRevision string
	KubeAPIQPS                             float32
	KubeAPIBurst                           int

	// RemoteClusters is true if Secrets of the API server name further clusters.
	RemoteClusters       bool
	RemoteClusterTimeout time.Duration
	// RemoteClusterStaleAfter is how long a remote cluster may be away until its endpoints come last.
	RemoteClusterStaleAfter time.Duration
	RemoteClusterAllow      []string

	// MCS are the options of the Multi-Cluster Services API.
	MCS MCSOptions

	// Registries is true if Secrets of the API server declare registries; RegistryDir has files that do, too.
	Registries      bool
	RegistryDir     string
	RegistryTimeout time.Duration
	RegistryAllow   []string

	// JWKSAllow are addresses from which keys of tokens are fetched although they are loopback, link-local or a
	// metadata service's; JWKSCAFile has roots that verify key servers besides the system's.
	JWKSAllow  []string
	JWKSCAFile string
	// JWKSMinInterval is the shortest time between two fetches of such keys.
	JWKSMinInterval time.Duration
	// MaxNamespaceJWKS bounds the addresses of keys that the RequestAuthentications of a namespace may name.
	MaxNamespaceJWKS int
	// GatewayNamesEvery is how often host names of gateways are looked up; 0 means never.
	GatewayNamesEvery time.Duration

	SystemNamespace, ClusterID, DomainSuffix string
	// MultiTenant limits what objects of one namespace do to workloads of others.
	MultiTenant bool
	// MaxNamespaceMemory bounds what the objects of a namespace may cost, in bytes; 0: nothing does.
	MaxNamespaceMemory                      int64
	Identity, CAIdentity, XDSServerIdentity string

	CAAddress, CATokenFile, RootCertFile string
	StateDir                             string
	StoreKeyFile                         string

	JWKSFile, Issuer string

	// MCPAddress serves the objects in force to other control planes; MCPKinds and MCPNamespaces choose some.
	// MCPClients are identities, MCPAllow addresses of callers without a certificate.
	MCPAddress                                    string
	MCPKinds, MCPNamespaces, MCPClients, MCPAllow []string
	// ConfigSourceTimeout is how long the first revision waits for a source of configSources; 0: until it has been
	// read.
	ConfigSourceTimeout time.Duration
	// ConfigSourceNamespaces are HOST:PORT/NAMESPACE.
	ConfigSourceNamespaces []string

	WebhookAddress, WebhookConfiguration string
	// APIServers are the webhook's callers with places of their own; nil: none are known.
	APIServers  *webhook.APIServers
	WebhookOnly bool
}

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{
		"trust-domain":    "trust domain of all identities, unless the mesh configuration names another",
		"admin-jwks-file": "keys that verify administrators' tokens for /debug (default: the value of --jwks-file)",
	})
	flags.StringVar(&o.GRPCAddress, "grpc-address", ":15060", "address of the gRPC port (TLS)")

	flags.StringSliceVar(&o.Peers, "peers", nil,
		"host:port of the other replicas, or one name with all their addresses, as of a headless Service; each replica hears from some "+
			"xds-servers alone, and the status of objects counts the proxies of all")

	flags.StringArrayVar(&o.ConfigDirs, "config-dir", nil, "directory or file of YAML or JSON objects to read and follow (repeatable)")
	flags.StringVar(&o.MeshConfigFile, "mesh-config-file", "", "file with the mesh configuration; wins over ConfigMap istio-system/istio")
	flags.StringVar(&o.StoreDir, "store-dir", "",
		"directory that keeps the objects of the configuration API; empty: they are lost at the end of the process")
	flags.StringVar(&o.StoreKeyFile, "store-encryption-key-file", "",
		"file (0600) of keys, one a line, 32 bytes in base64 or hex, that encrypt Secrets in --store-dir and --state-dir: the first encrypts, "+
			"all decrypt; empty: they are kept in the clear")
	flags.StringVar(&o.AuditLog, "audit-log", "",
		"file that keeps who wrote what through the configuration API; a write without its line is refused (default: audit/audit.log in "+
			"--store-dir; else the process's log alone)")
	flags.StringVar(&o.RolesFile, "roles-file", "",
		"YAML file of who else may use the configuration API, and what for; followed (default: nobody but the administrator)")
	flags.DurationVar(&o.ResyncPeriod, "resync-period", file.DefaultResync, "how often all files are read again without a notification")

	flags.DurationVar(&o.FileGrace, "file-grace-period", file.DefaultGrace,
		"how long the objects of a file stay in force that is gone, empty or cut off; at least 1s")

	flags.BoolVar(&o.Kubernetes, "kubernetes", false, "read the objects of a Kubernetes API server and follow them")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"file that names the API server of --kubernetes and the credentials for it (default: the service account of the Pod that this process "+
			"runs in)")
	flags.StringVar(&o.KubeContext, "kube-context", "", "context of --kubeconfig (default: its current one)")
	flags.Float32Var(&o.KubeAPIQPS, "kube-api-qps", 80,
		"requests a second to the API server of --kubernetes, and to that of each remote cluster")
	flags.IntVar(&o.KubeAPIBurst, "kube-api-burst", 160,
		"requests that may be sent at once to the API server of --kubernetes, and to that of each remote cluster")
	flags.BoolVar(&o.RemoteClusters, "remote-clusters", true,
		"with --kubernetes, read services and endpoints of the clusters that Secrets with the label istio/multiCluster=true in namespace "+
			"istio-system name")
	flags.DurationVar(&o.RemoteClusterTimeout, "remote-cluster-timeout", 30*time.Second,
		"how long the first revision waits for a remote cluster that cannot be read")
	flags.DurationVar(&o.RemoteClusterStaleAfter, "remote-cluster-stale-after", 10*time.Minute,
		"how long a remote cluster may be away until clients in other clusters use its endpoints only after all others")
	flags.StringSliceVar(&o.RemoteClusterAllow, "remote-cluster-allow-addresses", nil,
		"addresses or CIDRs that API servers of remote clusters may have although they are loopback, link-local or a metadata service's")
	o.MCS.addFlags(flags)
	flags.BoolVar(&o.Registries, "registries", true,
		"with --kubernetes, read the services of the registries in Consul that Secrets with the label fairlead.dev/registry=consul in namespace "+
			"istio-system declare")
	flags.StringVar(&o.RegistryDir, "registry-dir", "", "directory of YAML files, each of which declares a registry in Consul; followed")
	flags.DurationVar(&o.RegistryTimeout, "registry-timeout", 30*time.Second,
		"how long the first revision waits for a registry that cannot be read")
	flags.StringSliceVar(&o.RegistryAllow, "registry-allow-addresses", nil,
		"addresses or CIDRs that registries and the instances in them may have although they are loopback, link-local or a metadata service's")
	flags.StringVar(&o.IstioRevision, "revision", "",
		"revision of this control plane: objects of Istio's kinds in the API server whose label istio.io/rev names another one are left out "+
			"(default: all are read)")

	flags.StringVar(&o.SystemNamespace, "system-namespace", contract.SystemNamespace, "namespace of Fairlead's own service accounts")
	flags.StringVar(&o.Identity, "identity", "",
		"config-watcher's own identity, namespace/service-account (default: config-watcher in --system-namespace)")
	flags.StringVar(&o.CAIdentity, "ca-identity", "", "the ca's identity, namespace/service-account (default: ca in --system-namespace)")
	flags.StringVar(&o.XDSServerIdentity, "xds-server-identity", "",
		"identity of the xds-servers, namespace/service-account (default: xds-server in --system-namespace)")
	flags.StringVar(&o.ClusterID, "cluster-id", "Kubernetes", "id of the cluster that endpoints are attributed to")
	flags.StringVar(&o.DomainSuffix, "domain-suffix", "cluster.local", "DNS suffix of service names")
	flags.BoolVar(&o.MultiTenant, "multi-tenant", false,
		"confine routes, rules and ServiceEntries for hosts that are not of their namespace, and Gateways, to their namespace; those of the "+
			"root namespace are not confined")

	flags.Int64Var(&o.MaxNamespaceMemory, "max-namespace-memory", quota.Default,
		"bytes of memory that the objects of a namespace may take, by the estimate of docs/security.md, before more are refused; those of the "+
			"root and the system namespace may take any; 0: no bound")

	flags.StringSliceVar(&o.JWKSAllow, "jwks-allow-addresses", nil,
		"addresses or CIDRs that keys of RequestAuthentications are fetched from although they are loopback, link-local or a metadata service's")
	flags.StringVar(&o.JWKSCAFile, "jwks-ca-file", "",
		"file with roots, PEM, that verify the servers of such keys besides the operating system's; followed (default: none)")
	flags.DurationVar(&o.JWKSMinInterval, "jwks-min-interval", jwks.DefaultShortest,
		"shortest time after which such keys are fetched again, however short the answer's Cache-Control, and longest pause after failures; "+
			"1s to 10m")
	flags.IntVar(&o.MaxNamespaceJWKS, "max-namespace-jwks", jwks.DefaultPerNamespace,
		"how many addresses of keys the RequestAuthentications of a namespace may name; of more, the tokens are refused")

	flags.StringVar(&o.MCPAddress, "mcp-address", "",
		"address of the port (TLS) at which other control planes read the objects in force, by MCP over xDS (default: no port)")
	flags.StringSliceVar(&o.MCPKinds, "mcp-kinds", nil, "kinds that --mcp-address serves, such as ServiceEntry (default: all of Istio's)")
	flags.StringSliceVar(&o.MCPNamespaces, "mcp-namespaces", nil, "namespaces whose objects --mcp-address serves (default: all)")
	flags.StringSliceVar(&o.MCPClients, "mcp-clients", nil,
		"identities that may read at --mcp-address, namespace/service-account, by certificate")
	flags.StringSliceVar(&o.MCPAllow, "mcp-allow-addresses", nil,
		"addresses or CIDRs from which callers without a certificate may read at --mcp-address, as istiod does; an address proves nothing "+
			"(default: none)")
	flags.DurationVar(&o.ConfigSourceTimeout, "config-source-timeout", 0,
		"how long the first revision waits for a source of meshConfig.configSources that cannot be read and never was with this --state-dir; "+
			"0: until it has been read, since policies may be among its objects")
	flags.StringSliceVar(&o.ConfigSourceNamespaces, "config-source-namespaces", nil,
		"namespaces that a server of meshConfig.configSources may fill, HOST:PORT/NAMESPACE, once for each; a server that is not named may "+
			"fill all (default: none)")
	flags.DurationVar(&o.GatewayNamesEvery, "gateway-names-every", gatewayname.DefaultEvery,
		"how often the host names of other networks' gateways are looked up; 1s or more; 0: never, so that gateways without an IP address are "+
			"left out")

	flags.StringVar(&o.CAAddress, "ca-address", "127.0.0.1:15012", "address of the ca, or several divided by commas")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "", "file with the token that proves the own identity to the ca (audience istio-ca)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the trusted roots, PEM; followed (required)")
	flags.StringVar(&o.StateDir, "state-dir", "",
		"directory (0700) that keeps the own certificate, the sources' last good state and the number of the newest revision across restarts; "+
			"empty: none is kept, and a source that cannot be read at the start is waited for")

	flags.StringVar(&o.JWKSFile, "jwks-file", "",
		"keys that verify the command line's tokens (RFC 7517, audience fairlead); empty: certificates only")
	flags.StringVar(&o.WebhookAddress, "webhook-address", "",
		"address of the validating webhook (TLS), which the API server calls; Istio's port is 15017 (default: no webhook)")
	flags.StringVar(&o.WebhookConfiguration, "webhook-configuration", "",
		"ValidatingWebhookConfiguration that is compared with what API servers need, which fairlead-keeper writes, by --kubeconfig's "+
			"credentials or the Pod's (default: none)")
	o.APIServers = &webhook.APIServers{}
	o.APIServers.AddFlags(flags)
	flags.BoolVar(&o.WebhookOnly, "webhook-only", false, "run the validating webhook alone: no source, no store, no gRPC port")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that tokens must name (required with --jwks-file)")
}

// config is the options, checked and parsed.
type config struct {
	Options
	trustDomain               spiffeid.TrustDomain
	own, ca, xdsServer, admin spiffeid.ID
	mcpClients                []spiffeid.ID
	sourceNamespaces          map[string][]string // of config sources, by host:port

	remoteAllow, jwksAllow, registryAllow, mcpAllow []netip.Prefix
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
	for _, p := range o.Peers {
		if host, port, err := net.SplitHostPort(p); err != nil || host == "" || port == "" {
			errs.Add("peers", fmt.Errorf("%q is not host:port", p))
		}
	}
	errs.AtLeast("resync-period", o.ResyncPeriod, time.Second)
	if o.FileGrace < file.MinGrace {
		errs.Add("file-grace-period", fmt.Errorf("%s is less than %s, which an editor may take to replace a file", o.FileGrace, file.MinGrace))
	}
	if !remote.ID.MatchString(o.ClusterID) {
		errs.Add("cluster-id", fmt.Errorf("%q is not made of letters, digits, '-', '_' and '.'", o.ClusterID))
	}
	if o.WebhookOnly {
		o.checkWebhookOnly(&errs)
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
	o.checkKubernetes(&errs)
	c.remoteAllow = o.checkRemoteClusters(&errs)
	o.MCS.check(&errs, o.Kubernetes)
	if o.RegistryDir != "" || o.Kubernetes && o.Registries {
		errs.AtLeast("registry-timeout", o.RegistryTimeout, time.Second)
	}
	c.registryAllow = prefixes(&errs, "registry-allow-addresses", o.RegistryAllow)
	c.jwksAllow = prefixes(&errs, "jwks-allow-addresses", o.JWKSAllow)
	c.mcpClients, c.mcpAllow = c.checkMCP(&errs)
	c.sourceNamespaces = o.checkConfigSources(&errs)
	errs.AtLeast("config-source-timeout", o.ConfigSourceTimeout, 0)
	if o.JWKSMinInterval < time.Second || o.JWKSMinInterval > 10*time.Minute {
		errs.Add("jwks-min-interval", errors.New("must be 1s to 10m"))
	}
	if o.GatewayNamesEvery != 0 && o.GatewayNamesEvery < time.Second {
		errs.Add("gateway-names-every", errors.New("must be 1s or more, or 0"))
	}
	if o.MaxNamespaceJWKS < 1 {
		errs.Add("max-namespace-jwks", errors.New("must be 1 or more"))
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	for _, i := range []struct {
		id                  *spiffeid.ID
		flag, text, account string
	}{
		{&c.own, "identity", o.Identity, contract.ConfigWatcherAccount}, {&c.ca, "ca-identity", o.CAIdentity, contract.CAAccount},
		{&c.xdsServer, "xds-server-identity", o.XDSServerIdentity, contract.XDSServerAccount}, {&c.admin, "", "", contract.AdminAccount},
	} {
		flag, namespace, account := "system-namespace", o.SystemNamespace, i.account
		if i.text != "" {
			var ok bool
			flag = i.flag
			if namespace, account, ok = strings.Cut(i.text, "/"); !ok {
				return nil, fmt.Errorf("--%s: %q is not namespace/service-account", flag, i.text)
			}
		}
		var err error
		if *i.id, err = auth.WorkloadID(c.trustDomain, namespace, account); err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return c, nil
}

// checkKubernetes checks the flags of the connection to the API server.
func (o Options) checkKubernetes(errs *service.FlagErrors) {
	if !o.Kubernetes && o.WebhookConfiguration == "" {
		for flag, value := range map[string]string{"kubeconfig": o.Kubeconfig, "kube-context": o.KubeContext, "revision": o.IstioRevision} {
			if value != "" {
				errs.Add(flag, errors.New("has no effect without --kubernetes or --webhook-configuration"))
			}
		}
		return
	}
	if o.KubeContext != "" && o.Kubeconfig == "" {
		errs.Add("kube-context", errors.New("needs --kubeconfig"))
	}
	if o.KubeAPIQPS <= 0 {
		errs.Add("kube-api-qps", errors.New("must be more than 0"))
	}
	if o.KubeAPIBurst < 1 {
		errs.Add("kube-api-burst", errors.New("must be 1 or more"))
	}
	if msgs := validation.IsValidLabelValue(o.IstioRevision); len(msgs) > 0 {
		errs.Add("revision", fmt.Errorf("%q is no value of a label: %s", o.IstioRevision, msgs[0]))
	}
}

// checkRemoteClusters checks the flags of remote clusters, and returns the ranges of --remote-cluster-allow-addresses.
func (o Options) checkRemoteClusters(errs *service.FlagErrors) []netip.Prefix {
	if o.Kubernetes && o.RemoteClusters {
		errs.AtLeast("remote-cluster-timeout", o.RemoteClusterTimeout, time.Second)
		errs.AtLeast("remote-cluster-stale-after", o.RemoteClusterStaleAfter, time.Second)
	}
	return prefixes(errs, "remote-cluster-allow-addresses", o.RemoteClusterAllow)
}

// prefixes parses the addresses and CIDRs of a flag.
func prefixes(errs *service.FlagErrors, flag string, texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if ip, e := netip.ParseAddr(text); e == nil {
			prefix, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			errs.Add(flag, fmt.Errorf("%q is neither an address nor a CIDR", text))
			continue
		}
		out = append(out, prefix.Masked())
	}
	return out
}
