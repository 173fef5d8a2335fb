package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit/userns"
)

// inNamespace is the variable that tells the test binary that it runs in a network namespace of its own.
const inNamespace = "REDIRECT_NAMESPACE"

// namespaced runs the test once more in a network namespace with a loopback interface, and returns false there: the
// test goes on. Where it returns true the test is over.
func namespaced(t *testing.T, needed ...string) (over bool) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		sh(t, "ip link set lo up")
		return false
	}
	if userns.Again(t, append(needed, "unshare", "nft", "ip")...) {
		return true
	}
	// The legacy variant of iptables has a lock in /run.
	inside := exec.CommandContext(t.Context(), "unshare", "-n", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0" "$@"`,
		os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	inside.Env = append(os.Environ(), inNamespace+"=1")
	if out, err := inside.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return true
}

func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func apply(t *testing.T, o *Options) {
	t.Helper()
	if used, err := Apply(t.Context(), o, Exec); err != nil {
		t.Fatalf("%s: %v", used, err)
	}
}

// everyCase are the cases in an order in which rules come, change and go.
func everyCase(t *testing.T) []string {
	t.Helper()
	all := []string{"redirect", "tproxy", "tproxy", "dns", "all-dns", "everything", "adjoining", "nothing", "none", "redirect"}
	for name := range cases {
		if !slices.Contains(all, name) {
			t.Errorf("case %q is not applied", name)
		}
	}
	return all
}

// What netlink writes is what the program nft makes of the text that Plan prints.
func TestNetlinkWritesTheRulesOfThePlan(t *testing.T) {
	if namespaced(t) {
		return
	}
	for _, name := range everyCase(t) {
		o := parse(t, cases[name])
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script(chains(o)))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		want := sh(t, "nft -s list ruleset")
		apply(t, o)
		if diff := cmp.Diff(want, sh(t, "nft -s list ruleset")); diff != "" {
			t.Errorf("%s: by nft -, by netlink +:\n%s", name, diff)
		}
	}
}

// state is everything that Apply changes.
func state(t *testing.T) string {
	t.Helper()
	return sh(t, "nft list table inet fairlead 2>/dev/null; for v in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do "+
		"$v-save 2>/dev/null | grep FAIRLEAD | sed s/^/$v/; done; ip rule; ip -6 rule; ip route show table all type local; ip -6 addr show "+
		"dev lo")
}

// TestApply applies the rules of every case with every backend in one network namespace, one after the other, and
// removes them.
func TestApply(t *testing.T) {
	if namespaced(t, "iptables-legacy", "iptables-nft") {
		return
	}
	ctx := t.Context()
	before := state(t)
	for _, backend := range []Backend{IPTables, NFTables, IPTablesLegacy, Auto, IPTablesNFT} {
		var last *Options
		some := everyCase(t)
		if backend == IPTablesNFT || backend == Auto { // like IPTables and NFTables, by other means
			some = []string{"tproxy", "everything", "none", "dns"}
		}
		for _, name := range some {
			o := parse(t, cases[name], func(r *RawOptions) { r.Backend = string(backend) })
			apply(t, o)
			if name == "none" && state(t) != before {
				t.Errorf("%s: mode NONE leaves rules:\n%s", backend, state(t))
			}
			if err := Check(ctx, o, Exec); err != nil {
				t.Errorf("%s: %s: %v", backend, name, err)
			}
			if name == "everything" || name == "tproxy" {
				once := state(t)
				if apply(t, o); state(t) != once {
					t.Errorf("%s: %s: a second run changes something:\n%s", backend, name, cmp.Diff(once, state(t)))
				}
			}
			last = o
		}
		for range 2 { // there need not be anything
			if err := Remove(ctx, last, Exec); err != nil {
				t.Fatalf("%s: %v", backend, err)
			}
			if got := state(t); got != before {
				t.Errorf("%s: something is left:\n%s", backend, cmp.Diff(before, got))
			}
		}
		if err := Check(ctx, last, Exec); !errors.Is(err, ErrUnverified) {
			t.Errorf("%s: what was removed is in force: %v", backend, err)
		}
	}
	// Rules of one backend go when those of another come.
	for _, backend := range []string{"iptables-legacy", "auto", "iptables-nft", "nftables"} {
		apply(t, parse(t, func(r *RawOptions) { r.Backend = backend }))
	}
	if got := state(t); strings.Contains(got, prefix) || !strings.Contains(got, "redirect to :15001") {
		t.Errorf("after nftables:\n%s", got)
	}
	apply(t, parse(t, func(r *RawOptions) { r.Backend = "iptables-legacy" }))
	if got := state(t); !strings.Contains(got, "iptables-legacy:FAIRLEAD_OUTPUT") || strings.Contains(got, "redirect to :15001") {
		t.Errorf("after iptables:\n%s", got)
	}
}

func TestRulesThatSomethingElseEditsAreNotInForce(t *testing.T) {
	if namespaced(t, "iptables-legacy") {
		return
	}
	want := chains(parse(t))
	for name, meddle := range map[string]string{
		"a rule less":  "nft flush chain inet fairlead outbound",
		"a rule more":  "nft add rule inet fairlead proxy drop",
		"another rule": "nft flush chain inet fairlead outbound; nft add rule inet fairlead outbound drop",
		"a chain less": "nft flush chain inet fairlead prerouting; nft delete chain inet fairlead prerouting",
		"another hook": "nft flush chain inet fairlead prerouting; nft delete chain inet fairlead prerouting; nft add chain inet fairlead " +
			"prerouting",
		"no table": "nft delete table inet fairlead",
		"another order": "nft delete chain inet fairlead prerouting; nft add chain inet fairlead prerouting '{type nat hook prerouting " +
			"priority 5;}'",
	} {
		rules, err := nft{}.replace(want)
		if err != nil {
			t.Fatal(err)
		}
		sh(t, meddle)
		if err := (nft{}).verify(want, rules); !errors.Is(err, ErrUnverified) {
			t.Errorf("%s: %v", name, err)
		}
	}
	meddled := func(ctx context.Context, stdin, name string, args ...string) ([]byte, error) {
		return Exec(ctx, strings.Replace(stdin, "-A FAIRLEAD_OUTBOUND -p tcp -j REDIRECT --to-ports 15001\n", "", 1), name, args...)
	}
	if _, err := Apply(t.Context(), parse(t, func(r *RawOptions) { r.Backend = "iptables" }), meddled); !errors.Is(err, ErrUnverified) {
		t.Errorf("a rule of iptables that is missing: %v", err)
	}
}

// kernelWithout is one that answers nftables with an error.
type kernelWithout struct{ err error }

func (k kernelWithout) apply(context.Context, []*chain) error { return k.err }
func (k kernelWithout) remove(context.Context) error          { return k.err }

func TestIPTablesWhereTheKernelRefusesNFTables(t *testing.T) {
	if namespaced(t, "iptables-legacy") {
		return
	}
	o := parse(t, cases["everything"])
	none := func(context.Context, string, string, ...string) ([]byte, error) { return nil, exec.ErrNotFound }
	for name, tc := range map[string]struct {
		refusal error
		backend Backend
		run     Run
		want    []string
	}{
		"no nftables":                {unix.EOPNOTSUPP, Auto, Exec, nil},
		"no expression for redirect": {fmt.Errorf("write: %w", unix.ENOENT), Auto, Exec, nil},
		"iptables by a flag":         {unix.EOPNOTSUPP, IPTablesLegacy, Exec, nil},
		"no iptables either": {unix.EOPNOTSUPP, Auto, none,
			[]string{"neither nftables nor iptables", unix.EOPNOTSUPP.Error(), "iptables-legacy is not installed", "load the kernel's modules"}},
		"nftables by a flag": {unix.EOPNOTSUPP, NFTables, Exec, []string{unix.EOPNOTSUPP.Error()}},
		"no rights":          {unix.EPERM, Auto, Exec, []string{unix.EPERM.Error()}},
	} {
		o.Backend = tc.backend
		used, err := write(t.Context(), o, kernelWithout{tc.refusal}, tc.run)
		got := state(t)
		if len(tc.want) == 0 && (err != nil || used == NFTables || !strings.Contains(got, "FAIRLEAD_OUTPUT")) {
			t.Errorf("%s: by %s, %v:\n%s", name, used, err, got)
		}
		for _, text := range tc.want {
			if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(got, prefix) {
				t.Errorf("%s: %v, want %q; rules:\n%s", name, err, text, got)
			}
		}
		if err := programs(IPTables, Exec).remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestThousandsOfRangesAndPortsFit(t *testing.T) {
	if namespaced(t, "iptables-legacy") {
		return
	}
	var list, listed []string
	for i := range maxItems {
		list = append(list, fmt.Sprintf("10.%d.%d.0/24", i/128, i%128*2))
		listed = append(listed, fmt.Sprint(i+1))
	}
	o := parse(t, func(r *RawOptions) {
		r.OutboundRangesExcluded, r.OutboundPortsExcluded = strings.Join(list, ","), strings.Join(listed, ",")
	})
	for _, o.Backend = range []Backend{NFTables, IPTablesLegacy} {
		apply(t, o)
	}
}

func TestIPTablesIsChosenByWhatWorks(t *testing.T) {
	some := func(works ...string) Run {
		return func(_ context.Context, _, name string, _ ...string) ([]byte, error) {
			if slices.Contains(works, name) {
				return nil, nil
			}
			return nil, fmt.Errorf("%s: %w", name, exec.ErrNotFound)
		}
	}
	for _, tc := range []struct {
		name, forced, want, fails string
		run                       Run
	}{
		{name: "the machine's", run: some("iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save"), want: ""},
		{name: "the one with IPv6", run: some("iptables-save", "iptables-nft-save", "ip6tables-nft-save"), want: "-nft"},
		{name: "the forced one", forced: "legacy", run: some("iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save"),
			want: "-legacy"},
		{name: "none", run: some(), fails: "iptables-legacy is not installed"},
		{name: "not the forced one", forced: "legacy", run: some("iptables-save", "ip6tables-save"), fails: "iptables-legacy is not installed"},
	} {
		got, err := iptables{run: tc.run, variant: tc.forced, families: []family{ipv4, ipv6}}.choose(t.Context())
		if tc.fails == "" && (err != nil || got != tc.want) || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
			t.Errorf("%s: %q, %v, want %q, %q", tc.name, got, err, tc.want, tc.fails)
		}
	}
}

func TestIntervalsJoinAndEndAtTheLastAddress(t *testing.T) {
	show := func(prefixes ...string) string {
		var list []netip.Prefix
		for _, p := range prefixes {
			list = append(list, netip.MustParsePrefix(p))
		}
		var out []string
		for _, e := range intervals(list) {
			a, _ := netip.AddrFromSlice(e.Key)
			out = append(out, map[bool]string{true: "to ", false: "from "}[e.IntervalEnd]+a.String())
		}
		return strings.Join(out, ", ")
	}
	for want, list := range map[string][]string{
		"to 0.0.0.0, from 10.0.0.0, to 11.0.0.0, from 192.0.2.1, to 192.0.2.2": {"192.0.2.1/32", "10.0.0.0/8"},
		"to 0.0.0.0, from 10.0.0.0, to 13.0.0.0":                               {"12.0.0.0/8", "10.0.0.0/8", "11.0.0.0/8"},
		"from 0.0.0.0, to 1.0.0.0, from 128.0.0.0":                             {"128.0.0.0/1", "0.0.0.0/8"},
		"to ::, from fd00::, to fe00::, from fe80::, to fec0::":                {"fe80::/10", "fd00::/8"},
	} {
		if got := show(list...); got != want {
			t.Errorf("%v: %s, want %s", list, got, want)
		}
	}
}
