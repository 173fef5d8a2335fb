package config

import (
	"cmp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"fairlead.dev/pkg/meshdefaults"
)

// Flags are the flags of "node-agent proxy". A flag takes precedence over the environment, the environment over
// ProxyConfig, and ProxyConfig over defaults.
type Flags struct {
	// EnvFile has variables of a machine outside of Kubernetes; see environmentOf.
	EnvFile          string
	StateDir         string
	TokenFile        string
	RootCertFile     string
	EnvoyBinary      string
	DiscoveryAddress []string
	DiscoveryID      []string
	CAAddress        string
	CAID             []string
	StatusAddress    string
	Bind             string
	Domain           string
	DNSAddress       string
	ResolvConf       string
	Concurrency      int
	EnvoyRestarts    int
	Cache            bool
	LogLevel         string
	EnvoyLogLevel    string
	EnvoyComponents  string
	EnvoyFileFlush   time.Duration
	// STSPort 0 leaves it to the environment.
	STSPort            int
	TokenManagerPlugin string

	MeshConfig        string
	ServiceCluster    string
	BootstrapTemplate string
	OutlierLog        string
	// Profiling has no effect; see Register.
	Profiling bool

	// PodInfoDir holds the downward API's files "labels" and "annotations".
	PodInfoDir string
}

// Register adds the flags to fs. It also accepts Istio's spellings, such as --proxyLogLevel, so that injected arguments
// work.
func (f *Flags) Register(fs *pflag.FlagSet) {
	acceptAliases(fs, map[string]string{
		"proxyLogLevel": "proxy-log-level", "proxyComponentLogLevel": "proxy-component-log-level", "log_output_level": "log-level",
		"stsPort": "sts-port", "tokenManagerPlugin": "token-manager-plugin",
		"meshConfig": "mesh-config", "serviceCluster": "service-cluster", "templateFile": "bootstrap-template",
		"outlierLogPath": "outlier-log-path",
	})
	fs.StringVar(&f.EnvFile, envFileFlag, "", envFileUsage)
	fs.StringVar(&f.StateDir, "state-dir", "",
		"directory for sockets and Envoy's bootstrap, mode 0700 (default: configPath of PROXY_CONFIG, ./etc/istio/proxy)")
	fs.StringVar(&f.TokenFile, "token-file", defaultTokenFile, "file with the workload's JWT for ca and xds-server")
	fs.StringVar(&f.RootCertFile, "root-cert-file", defaultRootCertFile, "PEM file with the root certificates to trust")
	fs.StringVar(&f.EnvoyBinary, "envoy-binary", "", "Envoy to run; nothing else says which, no annotation either (default: "+
		meshdefaults.BinaryPath+")")
	fs.StringSliceVar(&f.DiscoveryAddress, "discovery-address", nil,
		"xds-servers, host:port, comma separated (default: ProxyConfig discoveryAddress, "+defaultDiscovery+")")
	fs.StringSliceVar(&f.DiscoveryID, "discovery-id", nil,
		"SPIFFE ids an xds-server may have (default: spiffe://<trust domain>/ns/<namespace of its Service, else istio-system>/sa/xds-server)")
	fs.StringVar(&f.CAAddress, "ca-address", "", "certificate authority, host:port, comma separated (default: CA_ADDR, "+defaultCA+")")
	fs.StringSliceVar(&f.CAID, "ca-id", nil,
		"SPIFFE ids the certificate authority may have (default: spiffe://<trust domain>/ns/<namespace of its Service, else "+
			"istio-system>/sa/ca; also those of --discovery-id if its address is one of the control plane)")
	fs.StringVar(&f.StatusAddress, "status-address", "",
		"address of the agent's metrics and health server (default: bind address, ProxyConfig statusPort or 15020)")
	fs.StringVar(&f.Bind, "bind", "", "address that 15020, 15021 and 15090 are bound to (default: all addresses of the instance's family)")
	fs.StringVar(&f.Domain, "domain", "", "DNS domain in the node id (default: <namespace>.svc.cluster.local)")
	fs.StringVar(&f.DNSAddress, "dns-address", "", "where DNS queries are answered, with ISTIO_META_DNS_CAPTURE (default: DNS_PROXY_ADDR, "+
		defaultDNSAddress+")")
	fs.StringVar(&f.ResolvConf, "resolv-conf", defaultResolvConf, "file with the name servers that are asked about names outside the mesh")
	fs.IntVar(&f.Concurrency, "concurrency", -1,
		"Envoy's worker threads, 0 for one per CPU (default: ProxyConfig concurrency, the CPU limit, 1)")
	fs.IntVar(&f.EnvoyRestarts, "proxy-restarts", 5,
		"how often within five minutes Envoy is started again after it has ended by itself, before the agent ends with code 4")
	fs.BoolVar(&f.Cache, "cache", false, "keep key and certificate in the state directory (0600) and use them again after a restart")
	fs.StringVar(&f.LogLevel, "log-level", "info", "the agent's log level: debug, info, warn or error")
	fs.StringVar(&f.EnvoyLogLevel, "proxy-log-level", "warning", "Envoy's log level, with those of components as in info,misc:error")
	fs.StringVar(&f.EnvoyComponents, "proxy-component-log-level", "", "Envoy's log levels per component, as in misc:error,upstream:debug")
	fs.DurationVar(&f.EnvoyFileFlush, "proxy-file-flush-interval", 0,
		"how late Envoy may write its access log to a file (default: ProxyConfig fileFlushInterval, 1s)")
	fs.IntVar(&f.STSPort, "sts-port", 0, "port on loopback for the exchange of tokens, RFC 8693 (default: STS_PORT, none)")
	fs.StringVar(&f.TokenManagerPlugin, "token-manager-plugin", "", "how tokens are exchanged (default: TOKEN_MANAGER_PLUGIN, "+
		googleTokenExchange+")")
	fs.StringVar(&f.MeshConfig, "mesh-config", defaultMeshConfigFile, "file with a MeshConfig, whose defaultConfig is the ProxyConfig that "+
		proxyConfigVariable+" and the annotation change; it need not exist")
	fs.StringVar(&f.ServiceCluster, "service-cluster", "", "cluster of the node (default: ProxyConfig serviceCluster, <app>.<namespace>)")
	fs.StringVar(&f.BootstrapTemplate, "bootstrap-template", "",
		"Go template in place of the agent's own bootstrap, with the parameters of Istio's (default: "+bootstrapTemplate+")")
	fs.StringVar(&f.OutlierLog, "outlier-log-path", "", "file to which Envoy logs ejections of endpoints by outlier detection")
	fs.BoolVar(&f.Profiling, "profiling", true, "accepted for compatibility: profiles need an administrator, whom an agent does not know")
	_ = fs.MarkHidden("profiling")
	fs.StringVar(&f.PodInfoDir, "pod-info-dir", defaultPodInfo, "directory with the downward API's files labels and annotations")
}

const (
	envFileFlag  = "env-file"
	envFileUsage = "file of variables as shells read it, such as the cluster.env of fairlead vm bootstrap; the environment is stronger"
)

// acceptAliases makes fs accept other spellings of flags, as keys of names, for the flags themselves.
func acceptAliases(fs *pflag.FlagSet, names map[string]string) {
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(names[name], name))
	})
}

// agentLevel also accepts Istio's "scope:level,scope:level", of which it returns the level of scope "default" or "all".
func agentLevel(v string) string {
	if !strings.Contains(v, ":") {
		return v
	}
	for part := range strings.SplitSeq(v, ",") {
		scope, level, ok := strings.Cut(part, ":")
		if ok && (scope == "default" || scope == "all") {
			return level
		}
	}
	return "info"
}
