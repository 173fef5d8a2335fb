package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// RedirectFlags are the flags of "node-agent init". A flag takes precedence over the Pod's annotations, those over the
// environment, the environment over ProxyConfig, and ProxyConfig over defaults.
type RedirectFlags struct {
	redirect.RawOptions
	// EnvFile is that of Flags. OwnRules is set by ParseRedirect: the file says that the machine's owner writes the
	// rules.
	EnvFile    string
	OwnRules   bool
	PodInfoDir string
	ResolvConf string
	LogLevel   string
	DryRun     bool
	Cleanup    bool
	// SkipApply leaves the rules as they are. Validate tries them, for ProbeTimeout at most.
	SkipApply, Validate bool
	ProbeTimeout        time.Duration
	// Namespace is the file of a network namespace; "" is this process's.
	Namespace string

	// nativeNFTables and forceBinary are Istio's ways to choose a backend.
	nativeNFTables bool
	forceBinary    string
	ignored        struct {
		text string
		flag bool
	}
}

const interceptionFlag = "istio-inbound-interception-mode"

// alwaysExcluded are the ports of agent and Envoy for readiness and metrics, which clients outside the mesh use.
const alwaysExcluded = "15090,15021,15020"

// Register adds the flags to fs, with the names and letters of Istio's init container. Flags that choose its
// implementation are accepted and have no effect.
func (f *RedirectFlags) Register(fs *pflag.FlagSet) {
	acceptAliases(fs, map[string]string{"log_output_level": "log-level", "cleanup-only": "cleanup"})
	fs.StringVarP(&f.Mode, interceptionFlag, "m", string(redirect.Redirect),
		"how inbound connections get to the proxy: REDIRECT, TPROXY (which keeps the caller's address), or NONE for no rules at all")
	fs.StringVarP(&f.OutboundPort, "envoy-port", "p", "15001", "the proxy's port for outbound connections")
	fs.StringVarP(&f.InboundPort, "inbound-capture-port", "z", "15006", "the proxy's port for inbound connections")
	fs.StringVarP(&f.TunnelPort, "inbound-tunnel-port", "e", "15008", "port of the tunnel between proxies, never redirected")
	fs.StringVarP(&f.ProxyUID, "proxy-uid", "u", "1337",
		"users the proxy and the agent run as, comma separated: their connections are not redirected")
	fs.StringVarP(&f.ProxyGID, "proxy-gid", "g", "1337", "groups they run as, comma separated")
	fs.StringVarP(&f.InboundPorts, "istio-inbound-ports", "b", "*", "ports to capture inbound, comma separated, * for all; '' for none")
	fs.StringVarP(&f.InboundPortsExcluded, "istio-local-exclude-ports", "d", alwaysExcluded, "ports not to capture inbound, where -b is *")
	fs.StringVarP(&f.OutboundRanges, "istio-service-cidr", "i", "*",
		"destinations to capture outbound, CIDR ranges, comma separated, * for all; '' for none")
	fs.StringVarP(&f.OutboundRangesExcluded, "istio-service-exclude-cidr", "x", "", "destinations not to capture outbound")
	fs.StringVarP(&f.OutboundPorts, "istio-outbound-ports", "q", "", "ports to capture outbound whatever the destination")
	fs.StringVarP(&f.OutboundPortsExcluded, "istio-local-outbound-ports-exclude", "o", "", "ports not to capture outbound")
	fs.StringVarP(&f.InterfacesExcluded, "istio-exclude-interfaces", "c", "", "network interfaces whose connections are left alone")
	fs.StringVarP(&f.VirtualInterfaces, "kube-virt-interfaces", "k", "",
		"interfaces of virtual machines here, whose inbound connections are outbound ones")
	fs.StringVarP(&f.TProxyMark, "istio-inbound-tproxy-mark", "t", "1337",
		"mark of the proxy's connections with TPROXY; the next number is used too")
	fs.StringVarP(&f.TProxyTable, "istio-inbound-tproxy-route-table", "r", "133", "routing table for them")
	fs.StringVar(&f.DNSPort, "dns-port", "15053", "the agent's port for DNS")
	fs.BoolVar(&f.RedirectDNS, "redirect-dns", false,
		"send DNS queries to resolv.conf's servers to the agent (default: ISTIO_META_DNS_CAPTURE)")
	fs.BoolVar(&f.CaptureAllDNS, "capture-all-dns", false, "with --redirect-dns: queries to any server")
	fs.BoolVar(&f.DropInvalid, "drop-invalid", false, "drop packets that belong to no connection (default: INVALID_DROP)")
	fs.BoolVarP(&f.DryRun, "dry-run", "n", false, "print the rules and change nothing")
	fs.BoolVar(&f.Cleanup, "cleanup", false, "take the rules out")
	fs.StringVar(&f.EnvFile, envFileFlag, "", envFileUsage)
	fs.StringVar(&f.PodInfoDir, "pod-info-dir", defaultPodInfo, "directory with the downward API's file annotations")
	fs.StringVar(&f.ResolvConf, "resolv-conf", defaultResolvConf, "file with the name servers")
	fs.StringVar(&f.LogLevel, "log-level", "info", "log level: debug, info, warn or error")
	fs.StringVar(&f.Backend, "redirect-backend", string(redirect.Auto),
		"how rules get into the kernel: nftables; iptables, iptables-legacy or iptables-nft, by these programs; auto for nftables, or iptables "+
			"where the kernel has no nftables")
	fs.BoolVar(&f.SkipApply, "skip-rule-apply", false, "leave the rules as they are")
	fs.BoolVar(&f.Validate, "run-validation", false,
		"then try the rules, and exit with code 126 if they do not redirect; run it as the proxy's user")
	fs.StringVar(&f.ProbePort, "iptables-probe-port", "15002", "port that --run-validation connects to")
	fs.DurationVar(&f.ProbeTimeout, "probe-timeout", 5*time.Second, "how long --run-validation tries")
	fs.StringVar(&f.Namespace, "network-namespace", "", "file of the network namespace to work in (default: that of the process)")
	fs.BoolVar(&f.nativeNFTables, "native-nftables", false, "as --redirect-backend nftables")
	fs.StringVar(&f.forceBinary, "force-iptables-binary", "", "legacy or nft: as --redirect-backend iptables-legacy or iptables-nft")
	for _, name := range []string{
		"force-apply", "reconcile", "dual-stack", "cni-mode", "restore-format", "iptables-trace-logging", "log_as_json",
	} {
		fs.BoolVar(&f.ignored.flag, name, false, "accepted for compatibility")
		_ = fs.MarkHidden(name)
	}
	fs.StringVar(&f.ignored.text, "iptables-version", "", "accepted for compatibility")
	_ = fs.MarkHidden("iptables-version")
}

// trafficAnnotations are the Pod's annotations on redirection, by flag; the first one that a Pod has counts.
var trafficAnnotations = map[string][]string{
	interceptionFlag:                     {"sidecar.istio.io/interceptionMode"},
	"istio-inbound-ports":                {"traffic.sidecar.istio.io/includeInboundPorts"},
	"istio-local-exclude-ports":          {"traffic.sidecar.istio.io/excludeInboundPorts"},
	"istio-service-cidr":                 {"traffic.sidecar.istio.io/includeOutboundIPRanges"},
	"istio-service-exclude-cidr":         {"traffic.sidecar.istio.io/excludeOutboundIPRanges"},
	"istio-outbound-ports":               {"traffic.sidecar.istio.io/includeOutboundPorts"},
	"istio-local-outbound-ports-exclude": {"traffic.sidecar.istio.io/excludeOutboundPorts"},
	"istio-exclude-interfaces":           {"traffic.sidecar.istio.io/excludeInterfaces"},
	"kube-virt-interfaces":               {"istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/kubevirtInterfaces"},
}

// redirectVariables are the variables whose names are not derived from the flag's, by flag.
var redirectVariables = map[string]string{"redirect-dns": dnsCapture, "drop-invalid": "INVALID_DROP", "capture-all-dns": "DNS_CAPTURE_ALL"}

// ParseRedirect makes the options of "node-agent init" from f, whose flags fs has parsed. Its error names every flag
// that must be corrected.
func ParseRedirect(fs *pflag.FlagSet, f *RedirectFlags, h Host) (*redirect.Options, error) {
	annotations, err := readPodInfo(h, f.PodInfoDir, "annotations")
	if err != nil {
		return nil, err
	}
	env, err := environmentOf(f.EnvFile, h)
	if err != nil {
		return nil, err
	}
	if env.machine {
		if err := f.ofMachine(fs, env, h); err != nil {
			return nil, err
		}
	}
	if err := f.complete(fs, env, annotations); err != nil {
		return nil, err
	}
	f.LogLevel = agentLevel(f.LogLevel)
	if f.RedirectDNS {
		if f.Nameservers, err = nameservers(f.ResolvConf, h); err != nil {
			return nil, err
		}
	}
	return redirect.Parse(f.RawOptions)
}

// ofMachine sets what Istio's start script decides on a machine: the user whose connections are not redirected is
// looked up by its name, ENVOY_USER.
func (f *RedirectFlags) ofMachine(fs *pflag.FlagSet, env *environment, h Host) error {
	f.OwnRules = env.boolean(customRules, false)
	if fs.Changed("proxy-uid") || env.get("PROXY_UID") != "" || h.User == nil || len(env.failed) > 0 {
		return errors.Join(env.failed...)
	}
	name := env.or("ENVOY_USER", proxyUser)
	uid, gid, err := h.User(name)
	if err != nil {
		return fmt.Errorf("the user that the proxy runs as (ENVOY_USER, else %s): %w: make this user, or give --proxy-uid", proxyUser, err)
	}
	f.ProxyUID = uid
	if !fs.Changed("proxy-gid") && env.get("PROXY_GID") == "" {
		f.ProxyGID = gid
	}
	return nil
}

// Workload is what a Pod says of its redirection.
type Workload struct {
	Annotations map[string]string
	// Environ is the environment of the proxy's container.
	Environ []string
	// UID and GID are those of the proxy; 0 stands for the default.
	UID, GID int64
	// Nameservers are those of its resolv.conf.
	Nameservers []netip.Addr
}

// RedirectOf makes the options for a Pod, as "node-agent init" would in it without flags. The texts are checked by
// redirect.Parse alone.
func RedirectOf(w Workload) (redirect.RawOptions, error) {
	var f RedirectFlags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(fs)
	for name, id := range map[string]int64{"proxy-uid": w.UID, "proxy-gid": w.GID} {
		if id > 0 {
			if err := fs.Set(name, strconv.FormatInt(id, 10)); err != nil {
				return redirect.RawOptions{}, err
			}
		}
	}
	err := f.complete(fs, newEnvironment(Host{Environ: w.Environ}), w.Annotations)
	f.Nameservers = w.Nameservers
	return f.RawOptions, err
}

// complete sets what no flag has set: by annotations, the environment and ProxyConfig.
func (f *RedirectFlags) complete(fs *pflag.FlagSet, env *environment, annotations map[string]string) error {
	pc := &meshv1alpha1.ProxyConfig{}
	if _, err := mergeProxyConfig(pc, proxyConfigVariable, env.get(proxyConfigVariable)); err != nil {
		return err
	}
	if _, err := mergeProxyConfig(pc, "annotation "+proxyConfigAnnotation, annotations[proxyConfigAnnotation]); err != nil {
		return err
	}
	env.extra = pc.GetProxyMetadata()
	if mode := pc.GetInterceptionMode(); mode != meshv1alpha1.ProxyConfig_REDIRECT && !fs.Changed(interceptionFlag) {
		f.Mode = mode.String()
	}
	var errs []error
	fs.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Hidden {
			return
		}
		value, source := annotationOf(flag.Name, annotations)
		if source == "" {
			source = cmp.Or(redirectVariables[flag.Name], strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_")))
			if value = env.get(source); value == "" {
				source = ""
			}
		}
		if flag.Name == "istio-local-exclude-ports" {
			port := annotations[statusPortAnnotation]
			if port == "" && pc.GetStatusPort() != 0 {
				port = strconv.Itoa(int(pc.GetStatusPort()))
			}
			value = strings.Join([]string{alwaysExcluded, port, value}, ",")
		} else if source == "" {
			return
		}
		if err := flag.Value.Set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", source, value, err))
		}
	})
	switch {
	case f.nativeNFTables:
		f.Backend = string(redirect.NFTables)
	case f.forceBinary != "":
		f.Backend = string(redirect.IPTables) + "-" + f.forceBinary
	}
	return errors.Join(errs...)
}

// annotationOf is the value of the first annotation for a flag, and its name; "" if there is none.
func annotationOf(flag string, annotations map[string]string) (value, name string) {
	for _, name := range trafficAnnotations[flag] {
		if value, found := annotations[name]; found {
			return value, name
		}
	}
	return "", ""
}

// nameservers are the servers of a resolv.conf.
func nameservers(path string, h Host) ([]netip.Addr, error) {
	conf, err := readResolvConf(path, h)
	if err != nil {
		return nil, err
	}
	out := lists.Map(conf.Servers, func(server string) netip.Addr { return netip.MustParseAddr(server).WithZone("").Unmap() })
	return out, nil
}
