package redirect

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
)

// usual are the options of Istio's injection.
func usual() RawOptions {
	return RawOptions{
		Mode: "REDIRECT", OutboundPort: "15001", InboundPort: "15006", TunnelPort: "15008", DNSPort: "15053", ProxyUID: "1337", ProxyGID: "1337",
		InboundPorts: "*", InboundPortsExcluded: "15090,15021,15020", OutboundRanges: "*", TProxyMark: "1337", TProxyTable: "133",
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
	"nothing": func(t *RawOptions) { t.InboundPorts, t.OutboundRanges = "", "" },
}

func TestRules(t *testing.T) {
	var used []string
	for name, edit := range cases {
		t.Run(name, func(t *testing.T) {
			text := usual()
			edit(&text)
			o, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "out", name+".nft")
			testkit.Golden(t, path, []byte(script(chains(o))))
			used = append(used, path)
		})
	}
	testkit.GoldenStale(t, filepath.Join("testdata", "out", "*"), used)
}

// TestApply applies the rules of every case in one network namespace, one after the other, and removes them.
func TestApply(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		testApply(t)
		return
	}
	if userns.Again(t, "unshare", "nft", "ip") {
		return
	}
	inside := exec.CommandContext(t.Context(), "unshare", "-n", os.Args[0], "-test.run", "^TestApply$", "-test.v")
	inside.Env = append(os.Environ(), inNamespace+"=1")
	if out, err := inside.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestApply") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// inNamespace is the variable that tells the test binary that it runs in the namespace.
const inNamespace = "REDIRECT_NAMESPACE"

// testApply is the part of TestApply that runs in the namespace.
func testApply(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	rules := func() string {
		out, err := exec.CommandContext(ctx, "sh", "-c", "nft list ruleset; ip rule; ip route show table all type local").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := rules()
	all := []string{"redirect", "tproxy", "tproxy", "dns", "all-dns", "everything", "nothing", "none", "redirect"}
	for name := range cases {
		if !slices.Contains(all, name) {
			t.Errorf("case %q is not applied", name)
		}
	}
	var last *Options
	for _, name := range all {
		text := usual()
		cases[name](&text)
		o, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := Apply(ctx, o, Exec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name == "none" && rules() != before {
			t.Errorf("mode NONE leaves rules:\n%s", rules())
		}
		last = o
	}
	for range 2 { // there need not be anything
		if err := Remove(ctx, last, Exec); err != nil {
			t.Fatal(err)
		}
		if got := rules(); got != before {
			t.Errorf("something is left:\n%s", cmp.Diff(before, got))
		}
	}
	meddled := func(ctx context.Context, stdin, name string, args ...string) ([]byte, error) {
		return Exec(ctx, strings.Replace(stdin, "meta l4proto tcp redirect to :15001", "", 1), name, args...)
	}
	if err := Apply(ctx, last, meddled); !errors.Is(err, ErrUnverified) {
		t.Errorf("a rule that is missing: %v", err)
	}
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
