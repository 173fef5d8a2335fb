package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/node-agent/internal/redirect"
)

// RedirectFlags are the flags of "node-agent init". A flag takes precedence over the Pod's annotations, those over the
// environment, the environment over ProxyConfig, and ProxyConfig over defaults.
type RedirectFlags struct {
	redirect.RawOptions
	PodInfoDir string
	ResolvConf string
	LogLevel   string
	DryRun     bool
	Cleanup    bool

	ignored struct {
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
	fs.StringVarP(&f.Mode, interceptionFlag, "m", string(redirect.Redirect), "how inbound connections get to the proxy: REDIRECT, TPROXY (which keeps the caller's address), or NONE for no rules at all")
	fs.StringVarP(&f.OutboundPort, "envoy-port", "p", "15001", "the proxy's port for outbound connections")
	fs.StringVarP(&f.InboundPort, "inbound-capture-port", "z", "15006", "the proxy's port for inbound connections")
	fs.StringVarP(&f.TunnelPort, "inbound-tunnel-port", "e", "15008", "port of the tunnel between proxies, never redirected")
	fs.StringVarP(&f.ProxyUID, "proxy-uid", "u", "1337", "users the proxy and the agent run as, comma separated: their connections are not redirected")
	fs.StringVarP(&f.ProxyGID, "proxy-gid", "g", "1337", "groups they run as, comma separated")
	fs.StringVarP(&f.InboundPorts, "istio-inbound-ports", "b", "*", "ports to capture inbound, comma separated, * for all; '' for none")
	fs.StringVarP(&f.InboundPortsExcluded, "istio-local-exclude-ports", "d", alwaysExcluded, "ports not to capture inbound, where -b is *")
	fs.StringVarP(&f.OutboundRanges, "istio-service-cidr", "i", "*", "destinations to capture outbound, CIDR ranges, comma separated, * for all; '' for none")
	fs.StringVarP(&f.OutboundRangesExcluded, "istio-service-exclude-cidr", "x", "", "destinations not to capture outbound")
	fs.StringVarP(&f.OutboundPorts, "istio-outbound-ports", "q", "", "ports to capture outbound whatever the destination")
	fs.StringVarP(&f.OutboundPortsExcluded, "istio-local-outbound-ports-exclude", "o", "", "ports not to capture outbound")
	fs.StringVarP(&f.InterfacesExcluded, "istio-exclude-interfaces", "c", "", "network interfaces whose connections are left alone")
	fs.StringVarP(&f.VirtualInterfaces, "kube-virt-interfaces", "k", "", "interfaces of virtual machines here, whose inbound connections are outbound ones")
	fs.StringVarP(&f.TProxyMark, "istio-inbound-tproxy-mark", "t", "1337", "mark of the proxy's connections with TPROXY; the next number is used too")
	fs.StringVarP(&f.TProxyTable, "istio-inbound-tproxy-route-table", "r", "133", "routing table for them")
	fs.StringVar(&f.DNSPort, "dns-port", "15053", "the agent's port for DNS")
	fs.BoolVar(&f.RedirectDNS, "redirect-dns", false, "send DNS queries to resolv.conf's servers to the agent (default: ISTIO_META_DNS_CAPTURE)")
	fs.BoolVar(&f.CaptureAllDNS, "capture-all-dns", false, "with --redirect-dns: queries to any server")
	fs.BoolVar(&f.DropInvalid, "drop-invalid", false, "drop packets that belong to no connection (default: INVALID_DROP)")
	fs.BoolVarP(&f.DryRun, "dry-run", "n", false, "print the rules and change nothing")
	fs.BoolVar(&f.Cleanup, "cleanup", false, "take the rules out")
	fs.StringVar(&f.PodInfoDir, "pod-info-dir", defaultPodInfo, "directory with the downward API's file annotations")
	fs.StringVar(&f.ResolvConf, "resolv-conf", defaultResolvConf, "file with the name servers")
	fs.StringVar(&f.LogLevel, "log-level", "info", "log level: debug, info, warn or error")
	for _, name := range []string{
		"run-validation", "skip-rule-apply", "force-apply", "reconcile", "dual-stack", "cni-mode", "restore-format", "iptables-trace-logging", "native-nftables", "force-iptables-binary-nft",
	} {
		fs.BoolVar(&f.ignored.flag, name, false, "accepted for compatibility")
		_ = fs.MarkHidden(name)
	}
	for _, name := range []string{"iptables-probe-port", "probe-timeout", "iptables-version"} {
		fs.StringVar(&f.ignored.text, name, "", "accepted for compatibility")
		_ = fs.MarkHidden(name)
	}
}

// trafficAnnotations are the Pod's annotations on redirection, by flag.
var trafficAnnotations = map[string]string{
	interceptionFlag:                     "sidecar.istio.io/interceptionMode",
	"istio-inbound-ports":                "traffic.sidecar.istio.io/includeInboundPorts",
	"istio-local-exclude-ports":          "traffic.sidecar.istio.io/excludeInboundPorts",
	"istio-service-cidr":                 "traffic.sidecar.istio.io/includeOutboundIPRanges",
	"istio-service-exclude-cidr":         "traffic.sidecar.istio.io/excludeOutboundIPRanges",
	"istio-outbound-ports":               "traffic.sidecar.istio.io/includeOutboundPorts",
	"istio-local-outbound-ports-exclude": "traffic.sidecar.istio.io/excludeOutboundPorts",
	"istio-exclude-interfaces":           "traffic.sidecar.istio.io/excludeInterfaces",
	"kube-virt-interfaces":               "traffic.sidecar.istio.io/kubevirtInterfaces",
}

// redirectVariables are the variables whose names are not derived from the flag's, by flag.
var redirectVariables = map[string]string{"redirect-dns": dnsCapture, "drop-invalid": "INVALID_DROP", "capture-all-dns": "DNS_CAPTURE_ALL"}

// ParseRedirect makes the options of "node-agent init" from f, whose flags fs has parsed. Its error names every flag
// that must be corrected.
func ParseRedirect(fs *pflag.FlagSet, f *RedirectFlags, h Host) (*redirect.Options, error) {
	env := newEnvironment(h.Environ)
	annotations, err := readPodInfo(h, f.PodInfoDir, "annotations")
	if err != nil {
		return nil, err
	}
	pc := &meshv1alpha1.ProxyConfig{}
	if _, err := mergeProxyConfig(pc, proxyConfigVariable, env.get(proxyConfigVariable)); err != nil {
		return nil, err
	}
	if _, err := mergeProxyConfig(pc, "annotation "+proxyConfigAnnotation, annotations[proxyConfigAnnotation]); err != nil {
		return nil, err
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
		source := trafficAnnotations[flag.Name]
		value, found := annotations[source]
		if !found {
			source = cmp.Or(redirectVariables[flag.Name], strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_")))
			value = env.get(source)
			found = value != ""
		}
		if !found {
			return
		}
		if flag.Name == "istio-local-exclude-ports" {
			value = alwaysExcluded + "," + value
		}
		if err := flag.Value.Set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", source, value, err))
		}
	})
	if err := errors.Join(errs...); err != nil {
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

// nameservers are the servers of a resolv.conf.
func nameservers(path string, h Host) ([]netip.Addr, error) {
	conf, err := readResolvConf(path, h)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, server := range conf.Servers {
		out = append(out, netip.MustParseAddr(server).WithZone("").Unmap())
	}
	return out, nil
}
