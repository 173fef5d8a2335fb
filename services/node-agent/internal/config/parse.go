package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/cgroup"
)

const (
	defaultTokenFile      = "./var/run/secrets/tokens/istio-token"
	defaultRootCertFile   = "./var/run/secrets/istio/root-cert.pem"
	defaultMeshConfigFile = "./etc/istio/config/mesh"
	defaultPodInfo        = "./etc/istio/pod"
	defaultResolvConf     = "/etc/resolv.conf"
	defaultDNSAddress     = "localhost:15053"
	dnsCapture            = "ISTIO_META_DNS_CAPTURE"
	// defaultDiscovery is Istio's default of discoveryAddress, which injection leaves out of PROXY_CONFIG. Each cluster
	// of a mesh has a Service of that name, those whose control plane is elsewhere, too.
	defaultDiscovery = "istiod.istio-system.svc:15012"
	defaultCA        = "ca.istio-system.svc:15012"

	defaultFileFlush    = time.Second
	defaultMinimumDrain = 5 * time.Second
)

// Host is the machine that Parse reads from; ThisHost in production.
type Host struct {
	Environ  []string
	ReadFile func(string) ([]byte, error)
	// Addresses returns the machine's IP addresses, for when INSTANCE_IP is not set.
	Addresses func() ([]netip.Addr, error)
	// Hostname is the machine's name, and User returns the ids of one of its users. They are asked when there is a file
	// of variables.
	Hostname func() (string, error)
	User     func(name string) (uid, gid string, err error)
	NumCPU   int
	// CPULimit is the number of CPUs whose time this process may use, 0 without a limit.
	CPULimit int
	// OpenFiles is the limit of open file descriptors.
	OpenFiles uint64
	// Asked, if it is set, is called with the name of every variable that is looked up, for the list of them.
	Asked func(name string)
}

// Parse makes the Config of "node-agent proxy <role>". Its error names every flag and variable that must be corrected.
func Parse(role string, f Flags, h Host) (*Config, error) {
	env, err := environmentOf(f.EnvFile, h)
	if err != nil {
		return nil, err
	}
	c := &Config{Role: Role(role)}

	podLabels, err := readPodInfo(h, f.PodInfoDir, "labels")
	if err != nil {
		return nil, err
	}
	podAnnotations, err := readPodInfo(h, f.PodInfoDir, "annotations")
	if err != nil {
		return nil, err
	}
	c.ProxyConfig = &meshv1alpha1.ProxyConfig{}
	mesh, err := meshConfigFile(f.MeshConfig, h)
	if err != nil {
		return nil, err
	}
	defaults, err := meshConfigDefaults(mesh)
	if err != nil {
		return nil, err
	}
	if err := c.merge(meshConfigSource, defaults); err != nil {
		return nil, err
	}
	if err := c.merge(proxyConfigVariable, env.get(proxyConfigVariable)); err != nil {
		return nil, err
	}
	if err := c.merge("annotation "+proxyConfigAnnotation, podAnnotations[proxyConfigAnnotation]); err != nil {
		return nil, err
	}
	pc := c.ProxyConfig
	env.extra = pc.GetProxyMetadata()
	var errs []error
	errs = append(errs, c.applyAnnotations(podAnnotations))
	cluster := f.ServiceCluster
	if env.machine {
		cluster = cmp.Or(cluster, env.get("ISTIO_SERVICE"))
	}
	if pc.GetClusterName() == nil && cluster != "" {
		pc.ClusterName = &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: cluster}
	}

	c.Meta, c.Labels, c.Annotations = env.metadata()
	maps.Copy(c.Labels, podLabels)
	maps.Copy(c.Annotations, podAnnotations)

	c.Interception = cmp.Or(env.get(metaPrefix+metaInterception), c.Annotations[trafficAnnotations[interceptionFlag][0]],
		pc.GetInterceptionMode().String())
	c.PodName = env.get("POD_NAME")
	c.Namespace = env.get("POD_NAMESPACE")
	c.ServiceAccount = env.or("SERVICE_ACCOUNT", "default")
	c.DNSDomain = cmp.Or(f.Domain, c.Namespace+".svc.cluster.local")
	if c.TrustDomain, err = spiffeid.TrustDomainFromString(env.or("TRUST_DOMAIN", "cluster.local")); err != nil {
		errs = append(errs, fmt.Errorf("TRUST_DOMAIN: %w", err))
	}
	if c.InstanceIPs, err = instanceIPs(env.get("INSTANCE_IP"), h); err != nil {
		errs = append(errs, err)
	}

	c.DiscoveryAddresses = f.DiscoveryAddress
	if len(c.DiscoveryAddresses) == 0 {
		c.DiscoveryAddresses = strings.Split(cmp.Or(pc.GetDiscoveryAddress(), env.controlPlane(), defaultDiscovery), ",")
	}
	c.CAAddress = cmp.Or(f.CAAddress, env.get("CA_ADDR"), defaultCA)
	for i, a := range c.DiscoveryAddresses {
		c.DiscoveryAddresses[i] = strings.TrimSpace(a)
		errs = append(errs, checkHostPort("discovery address", a))
	}
	for a := range strings.SplitSeq(c.CAAddress, ",") {
		errs = append(errs, checkHostPort("CA address", a))
	}
	c.DiscoveryIDs, err = ids("--discovery-id", f.DiscoveryID, c.TrustDomain, contract.XDSServerAccount, c.DiscoveryAddresses)
	errs = append(errs, err)
	c.CAIDs, err = c.caIDs(f)
	errs = append(errs, err)
	c.TokenFile, c.RootCertFile = f.TokenFile, f.RootCertFile
	c.CacheCertificate = f.Cache
	c.SecretTTL = env.duration("SECRET_TTL", contract.CertificateTTL)

	c.StateDir = cmp.Or(f.StateDir, pc.GetConfigPath(), meshdefaults.ConfigPath)
	errs = append(errs, c.parseProxyless(env), c.parseSecrets(env, mesh), c.parseSTS(f, env))
	c.EnvoyBinary = cmp.Or(f.EnvoyBinary, meshdefaults.BinaryPath)
	c.Concurrency = concurrency(f.Concurrency, pc, env, h)
	c.EnvoyRestarts = f.EnvoyRestarts
	c.EnvoyFileFlush = cmp.Or(f.EnvoyFileFlush, pc.GetFileFlushInterval().AsDuration(), defaultFileFlush)
	c.EnvoyFileFlushKB = pc.GetFileFlushMinSizeKb()
	c.LogLevel = agentLevel(f.LogLevel)
	c.MaxDownstreamConnections = max(h.OpenFiles/2, 128)
	c.DeltaXDS = env.boolean("ISTIO_DELTA_XDS", true)
	c.BootstrapXDS = env.boolean("BOOTSTRAP_XDS_AGENT", false)
	c.OnDemand = env.optional(proxyconfig.OnDemand)

	errs = append(errs, c.parseAddresses(f, env), c.parseDNS(f, env, h), c.parseLastGood(env), c.parseEnvoy(f, env, h))
	c.parseDrain(env)
	errs = append(errs, c.parseHealth(env))
	errs = append(errs, env.failed...)
	errs = append(errs, c.validate())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) merge(source, text string) error {
	warnings, err := mergeProxyConfig(c.ProxyConfig, source, text)
	c.Warnings = append(c.Warnings, warnings...)
	return err
}

// parseProxyless sets the fields for proxyless gRPC programs. Istio's injection sets three variables; node metadata
// GENERATOR=grpc alone implies them.
func (c *Config) parseProxyless(env *environment) error {
	proxyless := c.Meta[metaGenerator] == generatorGRPC
	c.NoEnvoy = env.boolean("DISABLE_ENVOY", proxyless)
	c.GRPCBootstrap = env.get("GRPC_XDS_BOOTSTRAP")
	if c.GRPCBootstrap == "" && proxyless {
		c.GRPCBootstrap = filepath.Join(c.StateDir, "grpc-bootstrap.json")
	}
	c.CertificateDir = env.get("OUTPUT_CERTS")
	if c.CertificateDir == "" && c.GRPCBootstrap != "" {
		c.CertificateDir = filepath.Join(c.StateDir, "certs")
	}
	for _, path := range []*string{&c.GRPCBootstrap, &c.CertificateDir} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// parseAddresses sets the addresses of ports 15020, 15021 and 15090.
func (c *Config) parseAddresses(f Flags, env *environment) error {
	bind := netip.IPv4Unspecified()
	if len(c.InstanceIPs) > 0 && c.InstanceIPs[0].Is6() {
		bind = netip.IPv6Unspecified()
	}
	if f.Bind != "" {
		var err error
		if bind, err = netip.ParseAddr(f.Bind); err != nil {
			return fmt.Errorf("--bind %q: want an IP address", f.Bind)
		}
	}
	statusPort := uint16(meshdefaults.StatusPort)
	if p := c.ProxyConfig.GetStatusPort(); p < 0 || p >= 1<<16 {
		return fmt.Errorf("ProxyConfig: statusPort %d: want a port, 1 to 65535, or 0 for 15020", p)
	} else if p > 0 {
		statusPort = uint16(p)
	}
	c.StatusAddress = netip.AddrPortFrom(bind, statusPort)
	c.ReadyAddress = netip.AddrPortFrom(bind, env.port("ENVOY_STATUS_PORT", 15021))
	c.StatsAddress = netip.AddrPortFrom(bind, env.port("ENVOY_PROMETHEUS_PORT", 15090))
	if f.StatusAddress != "" {
		var err error
		if c.StatusAddress, err = netip.ParseAddrPort(f.StatusAddress); err != nil {
			return fmt.Errorf("--status-address %q: want IP:port", f.StatusAddress)
		}
	}
	return nil
}

func (c *Config) parseDrain(env *environment) {
	defaults := meshdefaults.ProxyConfig()
	c.Drain = Drain{
		Envoy:      cmp.Or(c.ProxyConfig.GetDrainDuration(), defaults.GetDrainDuration()).AsDuration(),
		Minimum:    env.duration("MINIMUM_DRAIN_DURATION", defaultMinimumDrain),
		ExitOnZero: env.boolean("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
	}
	given, ok := env.seconds("TERMINATION_DRAIN_DURATION_SECONDS")
	if d := c.ProxyConfig.GetTerminationDrainDuration(); !ok && d != nil {
		given, ok = d.AsDuration(), true
	}
	switch {
	case ok:
		c.Drain.Termination = given
	case !c.Drain.ExitOnZero:
		c.Drain.Termination = defaults.GetTerminationDrainDuration().AsDuration()
	}
}

func readPodInfo(h Host, dir, name string) (map[string]string, error) {
	path := filepath.Join(dir, name)
	data, err := h.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	m, err := parsePodInfo(string(data))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %s: %w", name, path, err)
	}
	return m, nil
}

func instanceIPs(given string, h Host) ([]netip.Addr, error) {
	if given == "" {
		if h.Addresses == nil {
			return nil, nil
		}
		all, err := h.Addresses()
		if err != nil {
			return nil, fmt.Errorf("addresses of this machine: %w", err)
		}
		return slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsGlobalUnicast() }), nil
	}
	var out []netip.Addr
	for s := range strings.SplitSeq(given, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("INSTANCE_IP=%q: want an IP address", given)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

func checkHostPort(what, v string) error {
	host, port, err := net.SplitHostPort(strings.TrimSpace(v))
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%s %q: want host:port", what, v)
	}
	return nil
}

func ids(flag string, given []string, td spiffeid.TrustDomain, account string, addresses []string) ([]spiffeid.ID, error) {
	var out []spiffeid.ID
	if len(given) == 0 {
		if td.IsZero() {
			return nil, nil
		}
		for _, a := range addresses {
			id, err := spiffeid.FromSegments(td, "ns", namespaceOf(a), "sa", account)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
		return out, nil
	}
	for _, s := range given {
		id, err := spiffeid.FromString(s)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", flag, s, err)
		}
		out = append(out, id)
	}
	return out, nil
}

// caIDs are the identities that the certificate authority may have. At an address of the control plane, which Istio's
// files name, xds-server answers and forwards certificate requests.
func (c *Config) caIDs(f Flags) ([]spiffeid.ID, error) {
	addresses := strings.Split(c.CAAddress, ",")
	out, err := ids("--ca-id", f.CAID, c.TrustDomain, contract.CAAccount, addresses)
	for _, a := range addresses {
		if len(f.CAID) == 0 && slices.Contains(c.DiscoveryAddresses, strings.TrimSpace(a)) {
			return append(out, c.DiscoveryIDs...), err
		}
	}
	return out, err
}

// namespaceOf is the namespace of the Kubernetes Service that an address names, "istiod.istio-system.svc:15012"; the
// usual one for an address of another kind.
func namespaceOf(address string) string {
	host, _, err := net.SplitHostPort(strings.TrimSpace(address))
	if parts := strings.Split(host, "."); err == nil && len(parts) > 2 && parts[2] == "svc" && parts[1] != "" {
		return parts[1]
	}
	return contract.SystemNamespace
}

// concurrency is Envoy's number of worker threads: what the flag or ProxyConfig says, where 0 means one for each CPU of
// the machine; otherwise as many as the CPU limit allows. Istio's injection passes the limit in ISTIO_CPU_LIMIT,
// rounded up; elsewhere it is that of the control group. Without a limit it is one thread, because many proxies may
// share the machine.
func concurrency(flag int, pc *meshv1alpha1.ProxyConfig, env *environment, h Host) uint32 {
	limit := variable(env, "ISTIO_CPU_LIMIT", 0, "a whole number of CPUs", func(v string) (int, error) {
		n, err := strconv.ParseUint(v, 10, 16)
		return int(n), err
	})
	n := flag
	switch v := pc.GetConcurrency(); {
	case n >= 0:
	case v != nil:
		n = int(v.GetValue())
	default:
		n = min(cmp.Or(limit, h.CPULimit, 1), maxConcurrency)
	}
	return uint32(max(cmp.Or(n, h.NumCPU), 1))
}

// ThisHost is the Host that this process runs on.
func ThisHost(openFiles uint64, cpus int) Host {
	return Host{
		Environ:   os.Environ(),
		ReadFile:  os.ReadFile,
		Addresses: interfaceAddresses,
		Hostname:  os.Hostname,
		User:      userIDs,
		NumCPU:    cpus,
		CPULimit:  cgroup.Own("/").CPULimit(),
		OpenFiles: openFiles,
	}
}

func userIDs(name string) (uid, gid string, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", "", err
	}
	return u.Uid, u.Gid, nil
}

func interfaceAddresses() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out, nil
}
