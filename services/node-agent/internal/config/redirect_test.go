package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"fairlead.dev/services/node-agent/internal/redirect"
)

func parseRedirect(t *testing.T, h Host, args ...string) (*redirect.Options, error) {
	t.Helper()
	var f RedirectFlags
	set := pflag.NewFlagSet("init", pflag.ContinueOnError)
	f.Register(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return ParseRedirect(set, &f, h)
}

func TestParseRedirect(t *testing.T) {
	const resolv = "search apps.svc.cluster.local\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\n"
	annotations := func(lines ...string) map[string]string {
		return map[string]string{"etc/istio/pod/annotations": strings.Join(lines, "\n"), "/etc/resolv.conf": resolv}
	}
	all := redirect.Ports{All: true}
	own := redirect.Ports{List: []uint16{15090, 15021, 15020}}
	for _, tc := range []struct {
		name string
		host Host
		args []string
		want func(*redirect.Options)
	}{
		{name: "defaults", host: host(nil), want: func(*redirect.Options) {}},
		{
			name: "as Istio's injection says it", host: host(nil),
			args: append(strings.Fields("-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15090,15021,15020 --log_output_level=default:info"),
				"-x", ""),
			want: func(*redirect.Options) {},
		},
		{
			name: "annotations", host: host(annotations(
				`sidecar.istio.io/interceptionMode="TPROXY"`, `traffic.sidecar.istio.io/includeInboundPorts="80"`,
				`traffic.sidecar.istio.io/excludeInboundPorts="81"`, `traffic.sidecar.istio.io/includeOutboundIPRanges=""`,
				`traffic.sidecar.istio.io/excludeOutboundPorts="22"`,
			)),
			want: func(o *redirect.Options) {
				o.Mode, o.InboundPorts, o.Ranges = redirect.TProxy, redirect.Ports{List: []uint16{80}}, redirect.Ranges{}
				o.InboundPortsExcluded = redirect.Ports{List: []uint16{15090, 15021, 15020, 81}}
				o.OutboundPortsExcluded = redirect.Ports{List: []uint16{22}}
			},
		},
		{
			name: "the agent's port in ProxyConfig", host: host(annotations(`proxy.istio.io/config="statusPort: 16020"`)),
			want: func(o *redirect.Options) {
				o.InboundPortsExcluded = redirect.Ports{List: []uint16{15090, 15021, 15020, 16020}}
			},
		},
		{
			name: "the agent's port in its annotation",
			host: host(annotations(`proxy.istio.io/config="statusPort: 16020"`, `status.sidecar.istio.io/port="17020"`)),
			want: func(o *redirect.Options) {
				o.InboundPortsExcluded = redirect.Ports{List: []uint16{15090, 15021, 15020, 17020}}
			},
		},
		{
			name: "flag over annotation over environment over ProxyConfig",
			host: func() Host {
				h := host(annotations(`traffic.sidecar.istio.io/excludeOutboundPorts="1"`, `traffic.sidecar.istio.io/includeOutboundPorts="2"`))
				h.Environ = []string{
					"ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE=3", "ISTIO_OUTBOUND_PORTS=4", "ISTIO_INBOUND_INTERCEPTION_MODE=TPROXY",
					"PROXY_CONFIG=interceptionMode: NONE", "PROXY_UID=7",
				}
				return h
			}(),
			args: []string{"-o", "5"},
			want: func(o *redirect.Options) {
				o.OutboundPortsExcluded, o.OutboundPorts = redirect.Ports{List: []uint16{5}}, redirect.Ports{List: []uint16{2}}
				o.Mode, o.UIDs = redirect.TProxy, []uint32{7}
			},
		},
		{
			name: "all that Istio's injection may say", host: host(nil),
			args: append(strings.Fields("-p 15001 -z 15006 -u 1337 -m TPROXY -i 10.0.0.0/8 -b 80 -d 15090,15021,15020 -q 90 -o 22 -k tap0 -c eth1 "+
				"--log_output_level=all:debug --log_as_json --run-validation --skip-rule-apply --force-apply --dual-stack --native-nftables"), "-x",
				"10.1.0.0/16"),
			want: func(o *redirect.Options) {
				o.Mode, o.Backend = redirect.TProxy, redirect.NFTables
				o.InboundPorts, o.OutboundPorts = redirect.Ports{List: []uint16{80}}, redirect.Ports{List: []uint16{90}}
				o.OutboundPortsExcluded = redirect.Ports{List: []uint16{22}}
				o.Ranges = redirect.Ranges{V4: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
				o.RangesExcluded = redirect.Ranges{V4: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
				o.VirtualInterfaces, o.InterfacesExcluded = []string{"tap0"}, []string{"eth1"}
			},
		},
		{
			name: "a binary of iptables, as Istio names it", host: host(nil), args: []string{"--force-iptables-binary=legacy"},
			want: func(o *redirect.Options) { o.Backend = redirect.IPTablesLegacy },
		},
		{name: "the backend by a variable", host: host(nil, "REDIRECT_BACKEND=iptables"),
			want: func(o *redirect.Options) { o.Backend = redirect.IPTables }},
		{
			name: "the agent's port for probes, and a new name before an old one",
			host: host(annotations(`status.sidecar.istio.io/port="15999"`, `istio.io/reroute-virtual-interfaces="new0"`,
				`traffic.sidecar.istio.io/kubevirtInterfaces="old0"`)),
			want: func(o *redirect.Options) {
				o.InboundPortsExcluded = redirect.Ports{List: []uint16{15090, 15021, 15020, 15999}}
				o.VirtualInterfaces = []string{"new0"}
			},
		},
		{
			name: "ProxyConfig's metadata ask for DNS",
			host: host(annotations(`proxy.istio.io/config="interceptionMode: TPROXY\nproxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}"`)),
			want: func(o *redirect.Options) {
				o.Mode, o.RedirectDNS = redirect.TProxy, true
				o.Nameservers = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fe80::1")}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := &redirect.Options{
				Mode: redirect.Redirect, Backend: redirect.Auto, Probe: 15002, Outbound: 15001, Inbound: 15006, Tunnel: 15008, DNS: 15053,
				UIDs: []uint32{1337}, GIDs: []uint32{1337},
				InboundPorts: all, InboundPortsExcluded: own, Ranges: redirect.Ranges{All: true}, Mark: 1337, Table: 133,
			}
			tc.want(want)
			got, err := parseRedirect(t, tc.host, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRedirectRejects(t *testing.T) {
	for name, tc := range map[string]struct {
		host Host
		args []string
		want string
	}{
		"an annotation": {host: host(map[string]string{"etc/istio/pod/annotations": `sidecar.istio.io/interceptionMode="X"`}),
			want: "--istio-inbound-interception-mode"},
		"a variable":     {host: host(nil, "ISTIO_META_DNS_CAPTURE=perhaps"), want: "ISTIO_META_DNS_CAPTURE"},
		"no resolv.conf": {host: host(nil), args: []string{"--redirect-dns"}, want: "--resolv-conf"},
		"a bad one": {host: host(map[string]string{"/etc/resolv.conf": "nameserver localhost\n"}), args: []string{"--redirect-dns"},
			want: "localhost"},
		"a binary":    {host: host(nil), args: []string{"--force-iptables-binary=new"}, want: `--redirect-backend "iptables-new"`},
		"ProxyConfig": {host: host(nil, "PROXY_CONFIG=["), want: "PROXY_CONFIG"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseRedirect(t, tc.host, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestRedirectOfIsWhatInitWouldDoInThePod(t *testing.T) {
	annotations := map[string]string{"traffic.sidecar.istio.io/excludeOutboundPorts": "22", "sidecar.istio.io/interceptionMode": "TPROXY"}
	server := netip.MustParseAddr("10.96.0.10")
	raw, err := RedirectOf(Workload{Annotations: annotations, Environ: []string{"ISTIO_META_DNS_CAPTURE=true"}, UID: 7,
		Nameservers: []netip.Addr{server}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := redirect.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	want, err := parseRedirect(t, host(map[string]string{
		"etc/istio/pod/annotations": "traffic.sidecar.istio.io/excludeOutboundPorts=\"22\"\nsidecar.istio.io/interceptionMode=\"TPROXY\"",
		"/etc/resolv.conf":          "nameserver 10.96.0.10\n",
	}, "ISTIO_META_DNS_CAPTURE=true"), "-u", "7")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if _, err := RedirectOf(Workload{Annotations: map[string]string{proxyConfigAnnotation: "["}}); err == nil ||
		!strings.Contains(err.Error(), proxyConfigAnnotation) {
		t.Errorf("a broken annotation: %v", err)
	}
}

func TestInterceptionModeOfParse(t *testing.T) {
	annotated := map[string]string{"etc/istio/pod/annotations": `sidecar.istio.io/interceptionMode="NONE"`}
	for _, tc := range []struct {
		name string
		host Host
		want string
	}{
		{"nothing said", host(nil, pod...), "REDIRECT"},
		{"ProxyConfig", host(nil, append([]string{"PROXY_CONFIG=interceptionMode: TPROXY"}, pod...)...), "TPROXY"},
		{"annotation over ProxyConfig", host(annotated, append([]string{"PROXY_CONFIG=interceptionMode: TPROXY"}, pod...)...), "NONE"},
		{"environment over annotation", host(annotated, append([]string{"ISTIO_META_INTERCEPTION_MODE=TPROXY"}, pod...)...), "TPROXY"},
	} {
		c, err := Parse("sidecar", flags(t), tc.host)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if c.Interception != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, c.Interception, tc.want)
		}
	}
}

func TestDNSProxyOfParse(t *testing.T) {
	files := map[string]string{"/etc/resolv.conf": "nameserver 10.96.0.10\nsearch apps.svc.cluster.local\n", "/other": "nameserver ::1\n"}
	parse := func(env []string, args ...string) (*DNS, error) {
		c, err := Parse("sidecar", flags(t, args...), host(files, append(env, pod...)...))
		if err != nil {
			return nil, err
		}
		return c.DNS, nil
	}
	if got, err := parse(nil); got != nil || err != nil {
		t.Errorf("unasked: %v, %v", got, err)
	}
	got, err := parse([]string{"PROXY_CONFIG=proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}"})
	if err != nil || got.Addresses[0].String() != "127.0.0.1:15053" || got.Resolv.Servers[0] != "10.96.0.10" {
		t.Errorf("by ProxyConfig: %+v, %v", got, err)
	}
	got, err = parse([]string{"ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=127.0.0.9:53"}, "--resolv-conf", "/other")
	if err != nil || len(got.Addresses) != 1 || got.Addresses[0].String() != "127.0.0.9:53" || got.Resolv.Servers[0] != "::1" {
		t.Errorf("elsewhere: %+v, %v", got, err)
	}
	for _, address := range []string{"15053", "example.com:53", "127.0.0.1:x"} {
		if _, err := parse([]string{"ISTIO_META_DNS_CAPTURE=true"}, "--dns-address", address); err == nil ||
			!strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
