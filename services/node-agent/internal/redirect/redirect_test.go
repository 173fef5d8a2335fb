package redirect

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// usual are the options of Istio's injection.
func usual() RawOptions {
	return RawOptions{
		Mode: "REDIRECT", OutboundPort: "15001", InboundPort: "15006", TunnelPort: "15008", DNSPort: "15053", ProxyUID: "1337", ProxyGID: "1337",
		InboundPorts: "*", InboundPortsExcluded: "15090,15021,15020", OutboundRanges: "*", TProxyMark: "1337", TProxyTable: "133",
		ProbePort: "15002", Backend: "auto",
	}
}

// cases are options by the name of the golden file with their rules.
var cases = map[string]func(*RawOptions){
	"redirect": func(*RawOptions) {},
	"tproxy":   func(t *RawOptions) { t.Mode = "TPROXY" },
	"none":     func(t *RawOptions) { t.Mode = "NONE" },
	"dns": func(t *RawOptions) {
		t.RedirectDNS = true
		t.Nameservers = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10"), netip.MustParseAddr("10.96.0.10")}
	},
	"all-dns": func(t *RawOptions) { t.RedirectDNS, t.CaptureAllDNS = true, true },
	"everything": func(t *RawOptions) {
		t.InboundPorts, t.OutboundPorts, t.OutboundPortsExcluded = "80, 443", "8080", "22,25"
		t.OutboundRanges, t.OutboundRangesExcluded = "10.0.0.0/8,10.1.0.0/16,fd00::/8,192.0.2.1", "10.2.3.4/16"
		t.InterfacesExcluded, t.VirtualInterfaces = "eth1,eth2", "tap0"
		t.ProxyUID, t.ProxyGID, t.DropInvalid = "1337,1338", "", true
	},
	"adjoining": func(t *RawOptions) {
		t.OutboundRanges, t.OutboundRangesExcluded = "10.0.0.0/8,11.0.0.0/8,fe00::/8,ff00::/8", "0.0.0.0/1,fd00::/12"
	},
	"nothing": func(t *RawOptions) { t.InboundPorts, t.OutboundRanges = "", "" },
}

func parse(t *testing.T, edits ...func(*RawOptions)) *Options {
	t.Helper()
	text := usual()
	for _, edit := range edits {
		edit(&text)
	}
	o, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestRules(t *testing.T) {
	var used []string
	for name, edit := range cases {
		t.Run(name, func(t *testing.T) {
			o := parse(t, edit)
			want := chains(o)
			var saved strings.Builder
			for _, f := range []family{ipv4, ipv6} {
				fmt.Fprintf(&saved, "# %s-restore\n", f.program)
				for _, table := range allTables {
					saved.WriteString(tableRules(table, f, want).restore(table, parseSave("")))
				}
			}
			for end, text := range map[string]string{".nft": script(want), ".iptables": saved.String()} {
				path := filepath.Join("testdata", "out", name+end)
				testkit.Golden(t, path, []byte(text))
				used = append(used, path)
			}
		})
	}
	testkit.GoldenStale(t, filepath.Join("testdata", "out", "*"), used)
}

func TestParseRejects(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*RawOptions)
		want string
	}{
		"mode":                 {func(t *RawOptions) { t.Mode = "redirect" }, "--istio-inbound-interception-mode"},
		"port":                 {func(t *RawOptions) { t.OutboundPort = "0" }, "--envoy-port"},
		"ports":                {func(t *RawOptions) { t.InboundPorts = "80,http" }, "--istio-inbound-ports"},
		"port 0 in a list":     {func(t *RawOptions) { t.OutboundPorts = "0" }, "--istio-outbound-ports"},
		"nobody":               {func(t *RawOptions) { t.ProxyUID = "" }, "--proxy-uid"},
		"range":                {func(t *RawOptions) { t.OutboundRanges = "10.0.0.0/33" }, "--istio-service-cidr"},
		"rules in a range":     {func(t *RawOptions) { t.OutboundRangesExcluded = "fe80::1%x } drop" }, "--istio-service-exclude-cidr"},
		"rules in a name":      {func(t *RawOptions) { t.InterfacesExcluded = "a\" drop" }, "--istio-exclude-interfaces"},
		"everything excluded":  {func(t *RawOptions) { t.InboundPortsExcluded = "*" }, "--istio-local-exclude-ports"},
		"all ranges excluded":  {func(t *RawOptions) { t.OutboundRangesExcluded = "*" }, "--istio-service-exclude-cidr"},
		"backend":              {func(t *RawOptions) { t.Backend = "ebtables" }, "--redirect-backend"},
		"probe port":           {func(t *RawOptions) { t.ProbePort = "-1" }, "--iptables-probe-port"},
		"mark":                 {func(t *RawOptions) { t.TProxyMark = "x" }, "--istio-inbound-tproxy-mark"},
		"DNS without a server": {func(t *RawOptions) { t.RedirectDNS = true }, "--resolv-conf"},
	} {
		t.Run(name, func(t *testing.T) {
			text := usual()
			tc.edit(&text)
			if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
