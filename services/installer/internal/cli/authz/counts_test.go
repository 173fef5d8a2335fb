package authz_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// stats are what an Envoy 1.40 answers at /stats, by name, with track_per_rule_stats and the counter of dry runs.
var stats = map[string]string{
	"http.inbound_0.0.0.0_8080.rbac.allowed":                                                                                      "8",
	"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_allow_.shadow_denied":                                                           "1",
	"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_allow_.policy.ns[shop]-policy[tryallow]-rule[0].shadow_allowed":                 "1",
	"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_deny_.shadow_denied":                                                            "5",
	"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_deny_.policy.ns[shop]-policy[try]-rule[0].shadow_denied":                        "5",
	"http.inbound_0.0.0.0_8080.rbac.policy.ns[shop]-policy[allow]-rule[0].allowed":                                                "4",
	"istio_fairlead_dry_run_refusals.deny.ns[shop]-policy[try]-rule[0].allow.allowed.source_principal.spiffe://td/ns/shop/sa/a.b": "3",
	"istio_fairlead_dry_run_refusals.deny.ns[shop]-policy[try]-rule[0].allow..source_principal.":                                  "2",
	"istio_fairlead_dry_run_refusals.deny..allow.denied.source_principal.spiffe://td/ns/shop/sa/c":                                "1",
}

// keepAll and keepIstio are what Envoys answer that keep all statistics, and those of Istio's agents.
const (
	keepAll   = `{"stats_config":{}}`
	keepIstio = `{"stats_config":{"stats_matcher":{"inclusion_list":{"patterns":[{"prefix":"server"},{"suffix":"rbac.denied"},` +
		`{"suffix":"shadow_denied"},{"safe_regex":{"regex":"vhost.*"}}]}}}}`
)

// admin answers as the admin interface of an Envoy does, on a socket. The statistics of change take the place of
// others, or are not there if they are "".
func admin(t *testing.T, bootstrap string, change map[string]string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	values := maps.Clone(stats)
	maps.Copy(values, change)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/config_dump" {
			_, _ = w.Write([]byte(`{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.BootstrapConfigDump","bootstrap":` + bootstrap + `}]}`))
			return
		}
		filter := regexp.MustCompile(r.URL.Query().Get("filter"))
		var items []string
		for name, n := range values {
			if filter.MatchString(name) && n != "" {
				items = append(items, `{"name":"`+name+`","value":`+n+`}`)
			}
		}
		_, _ = w.Write([]byte(`{"stats":[` + strings.Join(items, ",") + `]}`))
	})}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// started is a mesh of a run directory with the Pod b.shop, which has the policies of stats.
func started(t *testing.T, socket string) func(args ...string) string {
	t.Helper()
	m := clitest.New(t)
	status := clitest.TwoProxies()[1]
	status.Namespace = "shop"
	m.SetFleet([]*configv1.ProxyStatus{status}, nil)
	policy := func(name, rest string) *configv1.Object {
		return object("AuthorizationPolicy", "shop", name, `{"metadata":{"name":"`+name+`"`+rest)
	}
	tried := `,"annotations":{"istio.io/dry-run":"true"}},"spec":{"rules":[{"to":[{"operation":{"paths":["/x"]}}]}]`
	m.SetFiles([]*configv1.Object{
		object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`),
		policy("allow", `},"spec":{"rules":[{"to":[{"operation":{"paths":["/a"]}}]},{"to":[{"operation":{"paths":["/b"]}}]}]}}`),
		policy("tryallow", tried+`}}`), policy("try", tried+`,"action":"DENY"}}`),
	}, nil)
	dir := m.RunMesh(t)
	state, err := runstate.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	state.Pods = []runstate.Pod{{Name: "b", Namespace: "shop", Kind: "sidecar", Agent: &runstate.Agent{AdminSocket: socket}}}
	if err := rundir.Write(rundir.Layout{Dir: dir}, state); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) string {
		out, _, err := clitest.Run("", append(args, "--run-dir", dir)...)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return strings.Join(strings.Fields(out), " ")
	}
}

func TestDryRunAndCoverageCountInProxies(t *testing.T) {
	run := started(t, admin(t, keepAll, nil))
	out := run("authz", "dry-run")
	for _, want := range []string{
		"ALLOW shop/tryallow 1", "DENY shop/try 1", "shop/try 0 spiffe://td/ns/shop/sa/a.b b.shop 3", "shop/try 0 without a certificate b.shop 2",
		"no ALLOW rule in dry run - spiffe://td/ns/shop/sa/c b.shop 1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing: %s", want, out)
		}
	}
	out = run("authz", "coverage", "-A")
	for _, want := range []string{
		"ALLOW shop/allow 0 1 4 - ", "ALLOW shop/allow 1 1 0 has matched no request", "DENY (dry run) shop/try 0 1 5 -",
		"ALLOW (dry run) shop/tryallow 0 1 1 -",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing: %s", want, out)
		}
	}
	if out = run("authz", "coverage"); strings.Contains(out, "shop/try") || !strings.Contains(out, "shop/allow 1") {
		t.Errorf("rules that matched are listed: %s", out)
	}
}

// TestCountsThatAreMissingAreToldSo: what proxies do not count is not shown as zero.
func TestCountsThatAreMissingAreToldSo(t *testing.T) {
	const refusals = "istio_fairlead_dry_run_refusals."
	without := map[string]string{}
	for name := range stats {
		if strings.HasPrefix(name, refusals) {
			without[name] = ""
		}
	}
	has := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing: %s", want, out)
			}
		}
	}
	run := started(t, admin(t, keepAll, without))
	has(run("authz", "dry-run", "b"), "shop/try 0 unknown b.shop 5", "no ALLOW rule in dry run - unknown b.shop 1",
		"note: callers are unknown of")

	// One caller more than is counted, a connection, and a proxy that counts no rules.
	run = started(t, admin(t, keepIstio, map[string]string{
		"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_deny_.policy.ns[shop]-policy[try]-rule[0].shadow_denied": "",
		"http.inbound_0.0.0.0_8080.rbac.policy.ns[shop]-policy[allow]-rule[0].allowed":                         "",
		"http.inbound_0.0.0.0_8080.rbac.istio_dry_run_deny_.shadow_denied":                                     "6",
		"tcp.rbac.istio_dry_run_deny_.shadow_denied":                                                           "1",
	}))
	has(run("authz", "dry-run"), "shop/try 0 without a certificate b.shop 2", "a DENY rule in dry run - unknown b.shop 2")
	out := run("authz", "coverage", "-A")
	has(out, "ALLOW shop/allow 0 1 - whether it has matched is not known: 1 of 1 workloads do not count",
		"note: not counted: b.shop: its Envoy is told")
	if strings.Contains(out, "has matched no") {
		t.Error(out)
	}
}

// TestRefusalsOfADryRun: what an Envoy counts apart by the outcome of ALLOW is one row, and what is no longer tried is
// marked.
func TestRefusalsOfADryRun(t *testing.T) {
	const of = "istio_fairlead_dry_run_refusals.deny.ns[shop]-policy[%s]-rule[0].allow.%s.source_principal.spiffe://td/ns/shop/sa/a.b"
	run := started(t, admin(t, keepAll, map[string]string{fmt.Sprintf(of, "try", "denied"): "4", fmt.Sprintf(of, "was", ""): "7"}))
	out := run("authz", "dry-run")
	for _, want := range []string{
		"shop/try 0 spiffe://td/ns/shop/sa/a.b b.shop 7 ", "shop/was (no longer) 0 spiffe://td/ns/shop/sa/a.b b.shop 7",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("%q is missing: %s", want, out)
		}
	}
	if out := run("authz", "dry-run", "-o", "json"); !strings.Contains(out, `"policy": "shop/try", "rule": 0, "caller"`) {
		t.Errorf("the rule is no number: %s", out)
	}
}

func TestWhyARequestWasDenied(t *testing.T) {
	run := started(t, admin(t, keepAll, nil))
	out := run("why", "b", "403 rbac_access_denied_matched_policy[none] - 10.0.0.1")
	if !strings.Contains(out, "no rule of the ALLOW policies matched: shop/allow") {
		t.Error(out)
	}
}
