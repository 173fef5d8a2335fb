package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/kube"
	"fairlead.dev/services/ca/internal/policy"
)

// Options are the ca's flags.
type Options struct {
	service.Options

	GRPCAddress    string
	Identity       string
	Dir            string
	RootTTL        time.Duration
	SignerFile     string
	Replica        string
	StateSecret    string
	Lease          string
	Peers          []string
	RootCertOut    string
	ExtraRootsFile string

	JWKSFile, Issuer string
	Kubernetes       bool
	Kubeconfig       string
	KubeContext      string
	KeysNamespaces   []string
	RootConfigMap    string
	// RemoteClustersFile has the remote clusters whose tokens count.
	RemoteClustersFile string

	WorkloadTTL, MinWorkloadTTL, MaxWorkloadTTL time.Duration
	MaxRenewalAge, MaxTokenLifetime             time.Duration
	ClockSkew                                   time.Duration
	DNSNames, IPAddresses, Impersonators        []string
	// RemoteDNSNames are those of services of remote clusters, which are none of the mesh's own.
	RemoteDNSNames     []string
	Forwarder          string
	TrustDomainAliases []string
	TLSMinVersion      string

	Workers, Queue int
	// QueueWait and MaxWatches have no flag: AddFlags sets them to queueWait and maxWatches. Settle is that of package
	// driver.
	QueueWait  time.Duration
	Settle     time.Duration
	MaxWatches int
}

// queueWait is how long a request may wait. Agents ask again after a second or two; a worker signs some thousand
// requests in that time, so that the queue is empty by then unless the ca cannot keep up.
const queueWait = time.Second

// Limits of lifetimes. The ca applies them to every request.
const (
	// defaultMinTTL keeps a client that asks for seconds from renewing all the time. Fairlead's agent asks for no less.
	defaultMinTTL = time.Minute
	// defaultMaxTTL is the default lifetime, so that a stolen key is of use for a day. Istio's ca allows 90 days.
	defaultMaxTTL = contract.CertificateTTL
	// defaultMaxRenewalAge lets a machine that gets its tokens by hand live with one token a month. Pods get a new
	// token every hour.
	defaultMaxRenewalAge = 30 * 24 * time.Hour
	// defaultMaxTokenLifetime is twice that of the tokens that agents of Pods get.
	defaultMaxTokenLifetime = 24 * time.Hour
)

// maxWatches is how many bundle watches may be open at once. They fit, besides issuing, into the memory that
// deploy/kustomize/base/ca gives the process: a watch costs about 21 KiB (29 KiB with the largest headers), its
// connection about 40 KiB, and garbage that is not collected yet the same again. There is room for a Deployment of
// 1,000 Pods.
const maxWatches = 1500

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{"shutdown-grace": "how long running requests may take after SIGTERM"})
	flags.StringVar(&o.GRPCAddress, "grpc-address", ":15012", "address of the gRPC port (TLS)")
	flags.StringVar(&o.Identity, "identity", "istio-system/ca", "the ca's own identity, namespace/service-account")
	flags.StringVar(&o.Dir, "ca-dir", "", "directory of the root certificate and key, 0700; made if missing (required)")
	flags.StringVar(&o.SignerFile, "signer-file", "",
		"file that chooses the signer (docs/guide/signers.md); without it the ca signs with a root of its own in --ca-dir")
	flags.StringVar(&o.Replica, "replica", cmp.Or(os.Getenv("POD_NAME"), "ca"), "name of this process among the replicas of the ca")
	flags.StringVar(&o.StateSecret, "state-secret", "",
		"with --kubernetes, namespace/name of the Secret that has the state which replicas share (default: a file in --ca-dir)")
	flags.StringVar(&o.Lease, "lease", "",
		"name of the Lease, in the namespace of --state-secret, of the replica that takes the steps of rotations")
	flags.StringSliceVar(&o.Peers, "peers", nil,
		"addresses of the replicas, host:port; the name of a headless Service stands for all of them, this one included")
	flags.DurationVar(&o.RootTTL, "root-ttl", 10*365*24*time.Hour, "lifetime of a root made now")
	flags.StringVar(&o.RootCertOut, "root-cert-out", "", "file to which the public trust bundle is written whenever it changes")
	flags.StringVar(&o.ExtraRootsFile, "extra-roots-file", "", "PEM file of roots to trust besides the ca's own; followed while the ca runs")

	flags.StringVar(&o.JWKSFile, "jwks-file", "",
		"keys that verify callers' tokens (RFC 7517); followed while the ca runs (required without --kubernetes, which writes them there)")
	flags.StringVar(&o.Issuer, "issuer", "", "issuer that callers' tokens must name (required without --kubernetes)")
	flags.BoolVar(&o.Kubernetes, "kubernetes", false,
		"take keys and issuer of tokens from the API server of the cluster that this process's Pod runs in, and keep the ConfigMap of "+
			"--root-configmap there, in every namespace, and ConfigMap fairlead-jwks, from which the other services take keys and issuer")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"file that names the API server of --kubernetes and the credentials for it (default: the service account of the Pod that this process "+
			"runs in)")
	flags.StringVar(&o.KubeContext, "kube-context", "", "context of --kubeconfig (default: its current one)")
	flags.StringVar(&o.RemoteClustersFile, "remote-clusters-file", "",
		"JSON file of the remote clusters whose tokens count, each with its issuer, keys and namespaces (docs/guide/multicluster.md); followed "+
			"(default: none; with --kubernetes the ca writes it, beside the keys, of the ConfigMaps in the namespace of --identity that have the "+
			"label "+clusterkeys.Label+"=true)")
	flags.StringSliceVar(&o.KeysNamespaces, "keys-namespaces", nil,
		"with --kubernetes, namespaces of ConfigMap fairlead-jwks (default: that of --identity)")
	flags.StringVar(&o.RootConfigMap, "root-configmap", "",
		"with --kubernetes, name of the ConfigMap with the roots that is kept in every namespace (default: "+contract.RootConfigMap+
			", where an Istio in the same cluster keeps its own)")

	flags.DurationVar(&o.WorkloadTTL, "workload-ttl", contract.CertificateTTL,
		"lifetime of certificates whose request asks for none, the ca's own included")
	flags.DurationVar(&o.MinWorkloadTTL, "min-workload-ttl", defaultMinTTL, "shortest lifetime; requests for less are raised to it")
	flags.DurationVar(&o.MaxWorkloadTTL, "max-workload-ttl", defaultMaxTTL, "longest lifetime; requests for more are cut to it")
	flags.DurationVar(&o.MaxRenewalAge, "max-renewal-age", defaultMaxRenewalAge,
		"how long after a workload last showed a token its certificates may be renewed with a certificate; 0: never")
	flags.DurationVar(&o.MaxTokenLifetime, "max-token-lifetime", defaultMaxTokenLifetime,
		"longest time between the issue and the expiry of a token that is taken; 0: any")
	flags.DurationVar(&o.ClockSkew, "clock-skew", 2*time.Minute,
		"how far issued certificates start in the past, for verifiers whose clocks are behind; roots always start 10m in the past")
	flags.StringArrayVar(&o.DNSNames, "dns-names", nil,
		"DNS names in the certificates of a workload: namespace/service-account=name,name (repeatable)")
	flags.StringArrayVar(&o.RemoteDNSNames, "remote-dns-names", nil,
		"DNS names, as by --dns-names, of a service of a remote cluster, such as its injector, which is none of the mesh's own services "+
			"(repeatable)")
	flags.StringArrayVar(&o.IPAddresses, "ip-addresses", nil,
		"IP addresses in the certificates of a workload, for clients that dial it by address: namespace/service-account=ip,ip (repeatable)")
	flags.StringVar(&o.Forwarder, "forwarder", "",
		"who may forward certificate requests with the tokens of workloads, namespace/service-account "+
			"(default: xds-server in the namespace of --identity); \"none\": nobody")
	flags.StringSliceVar(&o.TrustDomainAliases, "trust-domain-aliases", nil,
		"trust domains that the mesh has had before: whoever has a certificate of one, which the trust bundle verifies, is the workload of the "+
			"same name in --trust-domain, and gets certificates of that")
	flags.StringVar(&o.TLSMinVersion, "tls-min-version", tlsconf.Version13,
		"lowest TLS version of the gRPC port: 1.3, or 1.2 with the cipher suites that FIPS 140-3 approves")
	flags.StringArrayVar(&o.Impersonators, "impersonators", nil,
		"who may ask for whose certificates by metadata ImpersonatedIdentity: namespace/service-account=namespace/service-account,namespace/* "+
			"(repeatable)")

	flags.IntVar(&o.Workers, "workers", runtime.GOMAXPROCS(0), "requests worked on at once")
	flags.IntVar(&o.Queue, "queue", 1024,
		"requests that may wait; of more, those of the callers who have most are refused with RESOURCE_EXHAUSTED")
	o.QueueWait, o.MaxWatches = queueWait, maxWatches
}

// config is the options, checked and parsed.
type config struct {
	Options
	trustDomain spiffeid.TrustDomain
	aliases     []spiffeid.TrustDomain
	// namespace is that of the own identity.
	namespace string
	// own are the mesh's own services: accounts, and namespaces as namespace/*.
	own      map[string]bool
	identity spiffeid.ID
	admin    spiffeid.ID
	// forwarder is zero if nobody may forward requests.
	forwarder spiffeid.ID
	minTLS    uint16
	// ownNames are the DNS names of the ca's own certificate.
	ownNames []string
	policy   *policy.Policy
}

// needed are the identities that no ban shuts out: the ca itself, the xds-servers, the services that --dns-names names,
// and the first administrator.
func (c *config) needed() []spiffeid.ID {
	out := []spiffeid.ID{c.identity, c.forwarder, c.admin}
	for _, text := range c.DNSNames {
		who, _, _ := strings.Cut(text, "=")
		namespace, account, _ := strings.Cut(who, "/")
		if id, err := auth.WorkloadID(c.trustDomain, namespace, account); err == nil {
			out = append(out, id)
		}
	}
	return out
}

// reserved reports whether an account is one of the mesh's own services, or in a namespace of ca, config-watcher or
// xds-server: no token of a remote cluster proves such an identity.
func (c *config) reserved(namespace, account string) bool {
	return c.own[namespace+"/*"] || c.own[namespace+"/"+account]
}

// reserve says which accounts are the mesh's own services. Whoever has names in its certificate, or may ask for
// certificates of others, counts as one.
func (c *config) reserve(forwarder policy.Workload) {
	c.own = map[string]bool{c.namespace + "/*": true, forwarder.Namespace + "/*": true}
	for _, namespace := range c.KeysNamespaces {
		c.own[namespace+"/*"] = true
	}
	for _, text := range slices.Concat(c.DNSNames, c.IPAddresses, c.Impersonators) {
		who, _, _ := strings.Cut(text, "=")
		c.own[who] = true
	}
}

// maxAliases of the trust domain.
const maxAliases = 16

// aliases parses --trust-domain-aliases.
func (o Options) aliases(own spiffeid.TrustDomain, errs *service.FlagErrors) []spiffeid.TrustDomain {
	if n := len(o.TrustDomainAliases); n > maxAliases {
		errs.Add("trust-domain-aliases", fmt.Errorf("has %d entries, more than %d", n, maxAliases))
		return nil
	}
	var out []spiffeid.TrustDomain
	for _, text := range o.TrustDomainAliases {
		alias, err := spiffeid.TrustDomainFromString(text)
		switch {
		case err != nil:
			errs.Add("trust-domain-aliases", fmt.Errorf("%.255q: %w", text, err))
		case alias == own:
			errs.Add("trust-domain-aliases", fmt.Errorf("%s is --trust-domain itself; name those that the mesh has had before", alias))
		case slices.Contains(out, alias):
			errs.Add("trust-domain-aliases", fmt.Errorf("%s is there twice", alias))
		default:
			out = append(out, alias)
		}
	}
	return out
}

// noForwarder is the value of --forwarder that closes ForwardingService.
const noForwarder = "none"

// check reports everything that is wrong with the options at once.
func (o Options) check() (*config, error) {
	c := &config{Options: o}
	c.Replica = cmp.Or(o.Replica, "ca")
	c.AdminIssuer = cmp.Or(o.AdminIssuer, o.Issuer)
	var errs service.FlagErrors
	c.trustDomain = c.Check(&errs)
	c.aliases = o.aliases(c.trustDomain, &errs)
	errs.Required("ca-dir", o.Dir)
	if o.Kubernetes {
		if o.Issuer != "" {
			errs.Add("issuer", errors.New("excludes --kubernetes, which takes it from the API server"))
		}
		c.RootConfigMap = cmp.Or(o.RootConfigMap, contract.RootConfigMap)
		if problems := validation.IsDNS1123Subdomain(c.RootConfigMap); len(problems) > 0 || o.RootConfigMap == kube.KeysConfigMap {
			errs.Add("root-configmap", fmt.Errorf("%q is no name that a ConfigMap of roots can have", o.RootConfigMap))
		}
	} else {
		if o.RootConfigMap != "" {
			errs.Add("root-configmap", errors.New("has no effect without --kubernetes"))
		}
		if len(o.KeysNamespaces) > 0 {
			errs.Add("keys-namespaces", errors.New("has no effect without --kubernetes"))
		}
		if o.Kubeconfig != "" {
			errs.Add("kubeconfig", errors.New("has no effect without --kubernetes"))
		}
		errs.Required("jwks-file", o.JWKSFile)
		errs.Required("issuer", o.Issuer)
	}
	if o.KubeContext != "" && o.Kubeconfig == "" {
		errs.Add("kube-context", errors.New("needs --kubeconfig"))
	}
	o.checkReplicas(&errs)
	errs.Required("grpc-address", o.GRPCAddress)
	errs.AtLeast("root-ttl", o.RootTTL, time.Minute)
	errs.AtLeast("workload-ttl", o.WorkloadTTL, time.Second)
	errs.AtLeast("min-workload-ttl", o.MinWorkloadTTL, 0)
	errs.AtLeast("workload-ttl", o.WorkloadTTL, o.MinWorkloadTTL)
	errs.AtLeast("max-workload-ttl", o.MaxWorkloadTTL, o.WorkloadTTL)
	errs.AtLeast("max-renewal-age", o.MaxRenewalAge, 0)
	errs.AtLeast("max-token-lifetime", o.MaxTokenLifetime, 0)
	errs.AtLeast("clock-skew", o.ClockSkew, 0)
	if o.Workers < 1 || o.Queue < 1 {
		errs = append(errs, errors.New("--workers and --queue must be more than 0"))
	}
	dns, err := policy.ParseDNSNames(slices.Concat(o.DNSNames, o.RemoteDNSNames))
	errs.Add("dns-names", err)
	ips, err := policy.ParseIPAddresses(o.IPAddresses)
	errs.Add("ip-addresses", err)
	c.minTLS, err = tlsconf.ParseVersion(o.TLSMinVersion)
	errs.Add("tls-min-version", err)
	impersonators, err := policy.ParseImpersonators(o.Impersonators)
	errs.Add("impersonators", err)
	own, err := policy.ParseWorkload(o.Identity)
	errs.Add("identity", err)
	forwarder := policy.Workload{Namespace: own.Namespace, ServiceAccount: contract.XDSServerAccount}
	if o.Forwarder != "" && o.Forwarder != noForwarder {
		forwarder, err = policy.ParseWorkload(o.Forwarder)
		errs.Add("forwarder", err)
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	if len(c.KeysNamespaces) == 0 {
		c.KeysNamespaces = []string{own.Namespace}
	}
	c.namespace = own.Namespace
	c.reserve(forwarder)
	if c.identity, err = own.ID(c.trustDomain); err != nil {
		return nil, err
	}
	c.ownNames = dns[own]
	if c.admin, err = (policy.Workload{Namespace: own.Namespace, ServiceAccount: contract.AdminAccount}).ID(c.trustDomain); err != nil {
		return nil, err
	}
	if o.Forwarder != noForwarder {
		if c.forwarder, err = forwarder.ID(c.trustDomain); err != nil {
			return nil, err
		}
	}
	c.policy, err = policy.New(policy.Config{
		TrustDomain: c.trustDomain, Aliases: c.aliases, DefaultTTL: o.WorkloadTTL, MinTTL: o.MinWorkloadTTL, MaxTTL: o.MaxWorkloadTTL,
		MaxRenewalAge: o.MaxRenewalAge, MaxForeignAge: cmp.Or(o.MaxTokenLifetime, defaultMaxTokenLifetime),
		ClockSkew: o.ClockSkew, DNSNames: dns, IPAddresses: ips, Impersonators: impersonators,
	})
	return c, err
}
