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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/proto/fairlead/contract"
)

const (
	defaultTokenFile    = "./var/run/secrets/tokens/istio-token"
	defaultRootCertFile = "./var/run/secrets/istio/root-cert.pem"
	defaultStateDir     = "./etc/istio/proxy"
	defaultPodInfo      = "./etc/istio/pod"
	defaultResolvConf   = "/etc/resolv.conf"
	defaultDNSAddress   = "localhost:15053"
	dnsCapture          = "ISTIO_META_DNS_CAPTURE"
	defaultEnvoyBinary  = "/usr/local/bin/envoy"
	defaultDiscovery    = "xds-server.istio-system.svc:15012"
	defaultCA           = "ca.istio-system.svc:15012"

	defaultFileFlush        = time.Second
	defaultEnvoyDrain       = 45 * time.Second
	defaultTerminationDrain = 5 * time.Second
	defaultMinimumDrain     = 5 * time.Second
)

// Host is the machine that Parse reads from; ThisHost in production.
type Host struct {
	Environ  []string
	ReadFile func(string) ([]byte, error)
	// Addresses returns the machine's IP addresses, for when INSTANCE_IP is not set.
	Addresses func() ([]netip.Addr, error)
	NumCPU    int
	// OpenFiles is the limit of open file descriptors.
	OpenFiles uint64
}

// Parse makes the Config of "node-agent proxy <role>". Its error names every flag and variable that must be corrected.
func Parse(role string, f Flags, h Host) (*Config, error) {
	env := newEnvironment(h.Environ)
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
	if err := c.merge(proxyConfigVariable, env.get(proxyConfigVariable)); err != nil {
		return nil, err
	}
	if err := c.merge("annotation "+proxyConfigAnnotation, podAnnotations[proxyConfigAnnotation]); err != nil {
		return nil, err
	}
	pc := c.ProxyConfig
	env.extra = pc.GetProxyMetadata()

	c.Meta, c.Labels, c.Annotations = env.metadata()
	maps.Copy(c.Labels, podLabels)
	maps.Copy(c.Annotations, podAnnotations)

	c.Interception = cmp.Or(env.get(metaPrefix+metaInterception), c.Annotations[trafficAnnotations[interceptionFlag]], pc.GetInterceptionMode().String())
	c.PodName = env.get("POD_NAME")
	c.Namespace = env.get("POD_NAMESPACE")
	c.ServiceAccount = env.or("SERVICE_ACCOUNT", "default")
	c.DNSDomain = cmp.Or(f.Domain, c.Namespace+".svc.cluster.local")
	var errs []error
	if c.TrustDomain, err = spiffeid.TrustDomainFromString(env.or("TRUST_DOMAIN", "cluster.local")); err != nil {
		errs = append(errs, fmt.Errorf("TRUST_DOMAIN: %w", err))
	}
	if c.InstanceIPs, err = instanceIPs(env.get("INSTANCE_IP"), h); err != nil {
		errs = append(errs, err)
	}

	c.DiscoveryAddresses = f.DiscoveryAddress
	if len(c.DiscoveryAddresses) == 0 {
		c.DiscoveryAddresses = strings.Split(cmp.Or(pc.GetDiscoveryAddress(), defaultDiscovery), ",")
	}
	c.CAAddress = cmp.Or(f.CAAddress, env.get("CA_ADDR"), defaultCA)
	for i, a := range c.DiscoveryAddresses {
		c.DiscoveryAddresses[i] = strings.TrimSpace(a)
		errs = append(errs, checkHostPort("discovery address", a))
	}
	for a := range strings.SplitSeq(c.CAAddress, ",") {
		errs = append(errs, checkHostPort("CA address", a))
	}
	c.DiscoveryIDs, err = ids("--discovery-id", f.DiscoveryID, c.TrustDomain, contract.XDSServerAccount)
	errs = append(errs, err)
	c.CAIDs, err = ids("--ca-id", f.CAID, c.TrustDomain, contract.CAAccount)
	errs = append(errs, err)
	c.TokenFile, c.RootCertFile = f.TokenFile, f.RootCertFile
	c.CacheCertificate = f.Cache
	c.SecretTTL = env.duration("SECRET_TTL", contract.CertificateTTL)

	c.StateDir = cmp.Or(f.StateDir, pc.GetConfigPath(), defaultStateDir)
	errs = append(errs, c.parseProxyless(env))
	c.EnvoyBinary = cmp.Or(f.EnvoyBinary, defaultEnvoyBinary)
	c.Concurrency = concurrency(f.Concurrency, pc, h.NumCPU)
	c.EnvoyLogLevel, c.EnvoyComponentLog, c.EnvoyFileFlush = f.EnvoyLogLevel, f.EnvoyComponents, cmp.Or(f.EnvoyFileFlush, pc.GetFileFlushInterval().AsDuration(), defaultFileFlush)
	c.EnvoyFileFlushKB = pc.GetFileFlushMinSizeKb()
	c.LogLevel = agentLevel(f.LogLevel)
	c.MaxDownstreamConnections = max(h.OpenFiles/2, 128)
	c.DeltaXDS = env.boolean("ISTIO_DELTA_XDS", true)
	c.BootstrapXDS = env.boolean("BOOTSTRAP_XDS_AGENT", false)
	c.OnDemand = env.optional(onDemandMetadata)

	errs = append(errs, c.parseAddresses(f, env), c.parseDNS(f, env, h))
	c.parseDrain(env)
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
	statusPort := uint16(15020)
	if p := c.ProxyConfig.GetStatusPort(); p > 0 && p < 1<<16 {
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
	c.Drain = Drain{
		Envoy:      defaultEnvoyDrain,
		Minimum:    env.duration("MINIMUM_DRAIN_DURATION", defaultMinimumDrain),
		ExitOnZero: env.boolean("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
	}
	if d := c.ProxyConfig.GetDrainDuration(); d != nil {
		c.Drain.Envoy = d.AsDuration()
	}
	given, ok := env.seconds("TERMINATION_DRAIN_DURATION_SECONDS")
	if d := c.ProxyConfig.GetTerminationDrainDuration(); !ok && d != nil {
		given, ok = d.AsDuration(), true
	}
	switch {
	case ok:
		c.Drain.Termination = given
	case !c.Drain.ExitOnZero:
		c.Drain.Termination = defaultTerminationDrain
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

func ids(flag string, given []string, td spiffeid.TrustDomain, account string) ([]spiffeid.ID, error) {
	if len(given) == 0 {
		if td.IsZero() {
			return nil, nil
		}
		id, err := spiffeid.FromSegments(td, "ns", contract.SystemNamespace, "sa", account)
		return []spiffeid.ID{id}, err
	}
	var out []spiffeid.ID
	for _, s := range given {
		id, err := spiffeid.FromString(s)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", flag, s, err)
		}
		out = append(out, id)
	}
	return out, nil
}

// concurrency applies ProxyConfig's rules: 0 is one thread per CPU, unset is one thread.
func concurrency(flag int, pc *meshv1alpha1.ProxyConfig, cpus int) uint32 {
	n := flag
	if n < 0 {
		n = 1
		if v := pc.GetConcurrency(); v != nil {
			n = int(v.GetValue())
		}
	}
	if n == 0 {
		n = cpus
	}
	return uint32(max(n, 1))
}

// ThisHost is the Host that this process runs on.
func ThisHost(openFiles uint64, cpus int) Host {
	return Host{
		Environ:   os.Environ(),
		ReadFile:  os.ReadFile,
		Addresses: interfaceAddresses,
		NumCPU:    cpus,
		OpenFiles: openFiles,
	}
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
