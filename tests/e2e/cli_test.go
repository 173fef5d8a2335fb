package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestCommands asks a running mesh through the CLI, tries its debug pages without credentials, and then kills `fairlead
// up`.
func TestCommands(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	mustReach(t, m, m.From(t, "client-0"), clientID)

	const cluster = "outbound|80|v1|server.apps.svc.cluster.local"
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"proxy-status"}, []string{"client-0.apps", "CDS", "EDS", "LDS", "RDS", "SYNCED"}},
		{[]string{"proxy-config", "client-0", "clusters"}, []string{"server.apps.svc.cluster.local", "v1"}},
		{[]string{"proxy-config", "client-0", "clusters", "-o", "json"}, []string{cluster}},
		{[]string{"proxy-config", "client-0.apps", "listeners"}, []string{"15080"}},
		{[]string{"proxy-config", "client-0", "routes"}, []string{"server"}},
		{[]string{"proxy-config", "client-0", "endpoints"}, []string{m.Pod(t, "server-v1-0").IP + ":8080", "HEALTHY"}},
		{[]string{"proxy-config", "client-0", "secrets"}, []string{"default", "ROOTCA"}},
		{[]string{"proxy-config", "client-0", "secrets", "-o", "json"}, []string{"default", "ROOTCA"}},
		{[]string{"config", "get", "pods"}, []string{"client-0", "server-v1-0"}},
		{[]string{"version"}, []string{"fairlead", "ca", "config-watcher", "xds-server", "node-agent"}},
	} {
		code, out, errOut := m.CLI(t, c.args...)
		if code != 0 {
			t.Errorf("fairlead %v: exit code %d: %s", c.args, code, errOut)
		}
		for _, want := range c.says {
			if !strings.Contains(out, want) {
				t.Errorf("fairlead %v does not say %q:\n%s", c.args, want, out)
			}
		}
		if strings.Contains(out, "PRIVATE KEY") {
			t.Errorf("fairlead %v shows a private key", c.args)
		}
	}

	for _, s := range m.State(t).Services {
		for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK,
			"/debug/": http.StatusUnauthorized, "/debug/pprof/heap": http.StatusUnauthorized} {
			a, err := fleet.Direct().Get(t.Context(), "http://"+s.OpsAddress+path)
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != want {
				t.Errorf("%s: %s gives an anonymous caller status %d, want %d", s.Name, path, a.Status, want)
			}
		}
	}

	m.AssertNothingRejected(t)
	if len(m.Running()) < 10 {
		t.Errorf("only these processes are known: %v", m.Running())
	}
	m.KillUp(t)
	testkit.Eventually(t, testkit.Patience, func() error {
		if left := m.Running(); len(left) > 0 {
			return fmt.Errorf("outlived `fairlead up`: %s", strings.Join(left, "; "))
		}
		return nil
	})
}

// TestMeshConfigIsJudgedBeforeItIsInstalled: an installation refuses what config-watcher would refuse in the mesh, by
// its own rules, and says where there is no config-watcher to ask.
func TestMeshConfigIsJudgedBeforeItIsInstalled(t *testing.T) {
	alone := filepath.Join(t.TempDir(), "fairlead")
	text, err := os.ReadFile(binaries.Path("fairlead"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(alone, text, 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	for _, tc := range []struct {
		program, set string
		code         int
		says         string
	}{
		{"", "meshConfig.outboundTrafficPolicy.mode=REGISTRY", 3, `"REGISTRY" must be one of REGISTRY_ONLY`},
		{"", "meshConfig.rootNamespace=A_b", 3, `--set meshConfig.rootNamespace=A_b: meshConfig.rootNamespace: "A_b": not a namespace`},
		{"", "values.meshConfig.defaultConfig.concurrency=-1", 3, "values.meshConfig.defaultConfig.concurrency: -1: negative"},
		{"", "meshConfig.caCertificates[0].pem=none", 3, "no certificate in PEM"},
		{"", "meshConfig.accessLogFile=/dev/stdout", 0, ""},
		{alone, "meshConfig.rootNamespace=A_b", 0, "the program config-watcher is neither beside fairlead nor in PATH"},
	} {
		program := cmp.Or(tc.program, binaries.Path("fairlead"))
		cmd := exec.CommandContext(t.Context(), program, "manifest", "generate", "--set", tc.set)
		cmd.Env = []string{"PATH=" + t.TempDir(), "HOME=" + t.TempDir()}
		var said strings.Builder
		cmd.Stderr = &said
		_ = cmd.Run() // its exit code is asked for below
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(said.String(), tc.says) || tc.says == "" && said.Len() > 0 {
			t.Errorf("%s with %s: exit code %d, want %d, with %q:\n%s", program, tc.set, code, tc.code, tc.says, said.String())
		}
	}
}
