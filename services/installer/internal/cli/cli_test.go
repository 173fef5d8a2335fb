package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/configapi/configapitest"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// fixture is a fake config-watcher and the flags to reach it.
type fixture struct {
	*configapitest.Server
	flags []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	issuer := testkit.NewIssuer(t)
	s := configapitest.Start(t, configapitest.Config{JWKSFile: issuer.JWKSFile, Issuer: issuer.Name})
	return &fixture{s, []string{
		"--config-watcher-address", s.Address, "--root-cert-file", s.RootFile, "--trust-domain", testkit.TrustDomain,
		"--token-file", issuer.TokenFile("istio-system", "fairlead-admin", "fairlead"),
	}}
}

// run runs a command and returns what it printed, its error and its exit code.
func run(stdin string, args ...string) (out string, code int, err error) {
	var stdout bytes.Buffer
	err = cli.Run(context.Background(), command.Env{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stdout, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" },
	}, args)
	return stdout.String(), process.ExitCode(err), err
}

func (m *fixture) run(stdin string, args ...string) (string, int, error) {
	return run(stdin, append(args, m.flags...)...)
}

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "objects.yaml")
	testkit.WriteFile(t, name, []byte(content))
	return name
}

const object = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web]}\n"

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"up", "--nonsense"}, {"up", "extra"}, {"up", "--loopback-range", "here"}, {"up", "--log-level", "loud"},
		{"up", "--drain", "-1s"}, {"up", "--file-grace-period", "500ms"},
		{"config", "nonsense"}, {"config", "apply"}, {"config", "apply", "-f", "/does/not/exist"}, {"config", "delete"},
		{"config", "delete", "vs"},
		{"config", "get", "vs", "-o", "xml"}, {"config", "get", "--config-watcher-address", "127.0.0.1:1"},
		{"proxy-config", "web"}, {"proxy-config", "web", "nonsense"}, {"proxy-config", "web", "secrets", "--served"},
		{"proxy-config", "web", "nametables"}, {"proxy", "renew"}, {"demo"},
		{"why", "web"}, {"why", "web", "reviews", "-o", "xml"}, {"proxy-status", "-o", "xml"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if _, code, err := run("", args...); code != process.ExitUsage {
				t.Errorf("exit code %d, %v", code, err)
			}
		})
	}
}

func TestCommandsOfThisMachineSayWhatIsDoneInACluster(t *testing.T) {
	for command, want := range map[string]string{
		"logs web": "kubectl logs", "restart web": "kubectl rollout restart", "scale deploy/web --replicas=1": "kubectl scale",
		"config delete vs/web": "kubectl delete", "config apply -f " + file(t, object): "kubectl apply -f FILE",
	} {
		args := append(strings.Fields(command), "--run-dir", t.TempDir())
		if _, _, err := run("", args...); err == nil || !strings.Contains(err.Error(), "; for a mesh in a cluster: "+want) {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestHelpOfExitCodes(t *testing.T) {
	out, code, err := run("", "help", "exit-codes")
	if err != nil || code != process.ExitOK {
		t.Fatal(err)
	}
	for _, line := range []string{"  0  ", "  1  ", "  2  ", "  3  "} {
		if !strings.Contains(out, line) {
			t.Errorf("lacks %q:\n%s", line, out)
		}
	}
}

func TestApplyGetDelete(t *testing.T) {
	m := newFixture(t)
	name := file(t, object)
	out, _, err := m.run("", "config", "apply", "-f", name, "--dry-run")
	if err != nil || out != "VirtualService shop/web created (dry run)\n" || m.Object("VirtualService", "shop", "web") != nil {
		t.Errorf("dry run: %q, %v", out, err)
	}
	if out, _, err = m.run(object, "config", "apply", "-f", "-"); err != nil || out != "VirtualService shop/web created\n" {
		t.Errorf("standard input: %q, %v", out, err)
	}
	if out, _, err = m.run("", "config", "get"); err != nil ||
		!strings.Contains(out, "shop        VirtualService   web    1            memory") {
		t.Errorf("get: %q, %v", out, err)
	}
	if out, _, err = m.run("", "config", "get", "vs", "web", "-n", "shop", "-o", "yaml"); err != nil ||
		!strings.Contains(out, "hosts:\n  - web") {
		t.Errorf("get -o yaml: %q, %v", out, err)
	}
	out, _, err = m.run("", "config", "get", "virtualservices", "-o", "json")
	var list struct {
		Kind  string
		Items []struct{ Metadata struct{ Name string } }
	}
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || list.Kind != "List" || len(list.Items) != 1 ||
		list.Items[0].Metadata.Name != "web" {
		t.Errorf("get -o json: %q, %v", out, err)
	}
	if out, _, err = m.run("", "config", "get", "vs/web", "-n", "shop", "-o", "jsonpath={.metadata.name} {.spec.hosts[0]}"); err != nil ||
		out != "web web\n" {
		t.Errorf("get -o jsonpath: %q, %v", out, err)
	}
	if _, code, err := m.run("", "config", "get", "vs/web", "-n", "shop", "-o", "jsonpath={.metadata"); code != process.ExitUsage {
		t.Errorf("get -o jsonpath that is cut off: %d, %v", code, err)
	}
	if _, code, err := m.run("", "config", "get", "-w", "-o", "json"); code != process.ExitUsage {
		t.Errorf("get -w -o json: %d, %v", code, err)
	}
	if out, _, err = m.run("", "config", "delete", "-f", name); err != nil || out != "VirtualService shop/web deleted\n" {
		t.Errorf("delete: %q, %v", out, err)
	}
	if _, code, err := m.run("", "config", "get", "vs", "web", "-n", "shop"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "is not there") {
		t.Errorf("get of nothing: %d, %v", code, err)
	}
	if _, code, err := m.run("", "config", "delete", "vs", "web", "-n", "shop"); code != process.ExitFailure {
		t.Errorf("delete of nothing: %d, %v", code, err)
	}
}

func TestWhatIsPrintedCanBeApplied(t *testing.T) {
	m := newFixture(t)
	name := file(t, object+"---\n{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: shop}, data: {a: Yg==}}\n")
	if _, _, err := m.run("", "config", "apply", "-f", name); err != nil {
		t.Fatal(err)
	}
	out, _, err := m.run("", "config", "get", "-A", "-o", "yaml")
	if text, list, ok := strings.Cut(out, "\n"); err != nil || !ok || !strings.Contains(text, "Secrets are left out, 1 of them") ||
		strings.Contains(list, "kind: Secret") {
		t.Fatalf("%v, %s", err, out)
	} else if out, _, err = m.run(list, "config", "apply", "-f", "-"); err != nil || !strings.HasPrefix(out, "VirtualService shop/web ") {
		t.Errorf("%v, %s", err, out)
	}
	if out, _, err = m.run("", "config", "get", "secrets", "-A", "-o", "yaml"); err != nil || !strings.Contains(out, "kind: Secret") {
		t.Errorf("%v, %s", err, out)
	}
}

func TestWatchPrintsChanges(t *testing.T) {
	m := newFixture(t)
	name := file(t, object)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &sharedBuffer{}
	done := make(chan error, 1)
	go func() {
		done <- cli.Run(ctx, command.Env{Out: shown, Err: shown, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }},
			append([]string{"config", "get", "vs", "-A", "-w"}, m.flags...))
	}()
	prints := func(want string) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func() error {
			if out := shown.String(); !strings.Contains(out, want) {
				return fmt.Errorf("%q lacks %q", out, want)
			}
			return nil
		})
	}
	prints("no objects")
	if _, _, err := m.run("", "config", "apply", "-f", name); err != nil {
		t.Fatal(err)
	}
	prints("shop   VirtualService   web   1   memory")
	if _, _, err := m.run("", "config", "delete", "-f", name); err != nil {
		t.Fatal(err)
	}
	prints("gone")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// sharedBuffer is what a command writes while a test reads it.
type sharedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is the text with single blanks for those between columns.
func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return regexp.MustCompile(" {2,}").ReplaceAllString(b.text.String(), "   ")
}

func TestApplyWarns(t *testing.T) {
	m := newFixture(t)
	name := file(t, strings.ReplaceAll(object, "web", "ineffective"))
	const want = "VirtualService shop/ineffective created\n  warning: VirtualService shop/ineffective: spec: has no effect\n"
	if out, _, err := m.run("", "config", "apply", "-f", name); err != nil || out != want {
		t.Errorf("%q, %v", out, err)
	}
	if out, _, err := m.run("", "config", "apply", "-f", name, "-o", "json"); err != nil ||
		!strings.Contains(out, `"VirtualService shop/ineffective: spec: has no effect"`) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestApplyStrictRefusesWarnings(t *testing.T) {
	m := newFixture(t)
	name := file(t, strings.ReplaceAll(object, "web", "ineffective"))
	_, code, err := m.run("", "config", "apply", "--strict", "-f", name)
	if code != process.ExitRefused || err == nil ||
		!strings.Contains(err.Error(), "nothing was changed:\n  VirtualService shop/ineffective: spec: has no effect") {
		t.Errorf("%d, %v", code, err)
	}
	if m.Object("VirtualService", "shop", "ineffective") != nil {
		t.Error("it was written")
	}
	if out, _, err := m.run("", "config", "apply", "--strict", "-f", file(t, object)); err != nil ||
		out != "VirtualService shop/web created\n" {
		t.Errorf("an object without warnings: %q, %v", out, err)
	}
}

func TestRefusedInput(t *testing.T) {
	m := newFixture(t)
	name := file(t, object+"---\n"+strings.ReplaceAll(object, "web", "broken"))
	_, code, err := m.run("", "config", "apply", "-f", name)
	if code != process.ExitRefused {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{name, "VirtualService shop/broken", "spec", "mend it", "nothing was changed"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if m.Object("VirtualService", "shop", "web") != nil {
		t.Error("the good half was written")
	}
}

func TestApplyWait(t *testing.T) {
	m := newFixture(t)
	name := file(t, object)
	node := func(pod string) string { return "sidecar~127.0.0.1~" + pod + ".shop~shop.svc.cluster.local" }
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: node("a")}, {NodeId: node("b")}}, nil)
	out, _, err := m.run("", "config", "apply", "-f", name, "--wait", "-o", "json")
	var answer struct {
		Revision uint64
		Results  []struct{ Kind, Name, Action string }
		Wait     struct {
			Acked             int
			Pending, Rejected []any
		}
	}
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil {
		t.Fatalf("%q, %v", out, err)
	}
	if answer.Revision != 1 || answer.Wait.Acked != 2 || answer.Wait.Pending == nil || answer.Results[0].Action != "created" {
		t.Errorf("answer %+v", answer)
	}
	m.SetFleet(nil, &configv1.WaitAckedResponse{
		Revision: &configv1.Revision{Sequence: 9}, Acked: 1, Pending: []string{node("a")},
		Rejected: []*configv1.ProxyStatus{{NodeId: node("b"), Types: []*configv1.ProxyTypeStatus{
			{TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener", Rejection: &configv1.Rejection{Message: "no such filter"}},
		}}},
	})
	out, code, err := m.run("", "config", "apply", "-f", name, "--wait")
	if code != process.ExitFailure || !strings.Contains(err.Error(), "1 pending, 1 rejected") {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, want := range []string{"pending: a.shop", "rejected: b.shop, LDS: no such filter"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}

func TestConnectionErrorsNameTheRemedy(t *testing.T) {
	m := newFixture(t)
	closed := testkit.FreeAddress(t).String()
	strangers := testkit.NewIssuer(t).TokenFile("istio-system", "fairlead-admin", "fairlead")
	replace := func(flag, value string) []string {
		out := append([]string{"config", "get"}, m.flags...)
		for i := range out {
			if out[i] == flag {
				out[i+1] = value
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"server away":     {replace("--config-watcher-address", closed), "cannot be reached"},
		"another's token": {replace("--token-file", strangers), "does not know who you are"},
		"no token file":   {replace("--token-file", "/does/not/exist"), "--token-file"},
		"another's root":  {replace("--root-cert-file", testkit.PKI(t).WriteRoot(t.TempDir())), "cannot be reached"},
		"no mesh":         {[]string{"config", "get", "--run-dir", t.TempDir()}, "fairlead up --run-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, code, err := run("", tc.args...); code != process.ExitFailure || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("exit code %d, %v", code, err)
			}
		})
	}
}

// TestRunDirectory finds the mesh by its state.json.
func TestRunDirectory(t *testing.T) {
	m := newFixture(t)
	dir := t.TempDir()
	s := runstate.State{
		PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()), TrustDomain: testkit.TrustDomain,
		ConfigWatcherAddress: m.Address, RootCertFile: m.RootFile, AdminTokenFile: m.flags[len(m.flags)-1],
	}
	if err := rundir.Write(rundir.Layout{Dir: dir}, &s); err != nil {
		t.Fatal(err)
	}
	if out, _, err := run(object, "config", "apply", "-f", "-", "--run-dir", dir); err != nil || !strings.Contains(out, "created") {
		t.Errorf("%q, %v", out, err)
	}
	if _, code, err := run("", "proxy-config", "nobody", "clusters", "--run-dir", dir); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "nobody") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out, _, err := run("", "down", "--run-dir", t.TempDir()); err != nil || !strings.Contains(out, "no mesh runs") {
		t.Errorf("down of nothing: %q, %v", out, err)
	}
}

func TestUpRefuses(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {a: b}}\n  " +
		"template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: web, image: web}]}\n"
	bin := t.TempDir()
	for _, name := range []string{"ca", "config-watcher", "xds-server", "node-agent", "envoy"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	up := func(content string) (int, error) {
		_, code, err := run("", "up", "--bin-dir", bin, "--run-dir", filepath.Join(t.TempDir(), "run"), "-f", file(t, content))
		return code, err
	}
	if code, err := up(deployment); code != process.ExitRefused ||
		!strings.Contains(err.Error(), "Deployment default/web: spec.template.spec.containers[0].command") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if code, err := up("kind: ["); code != process.ExitRefused || !strings.Contains(err.Error(), "objects.yaml:1") {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, args := range [][]string{{"-f", "nofile"}, {"mesh.yaml"}} {
		if _, code, err := run("", append([]string{"up", "--bin-dir", bin, "--run-dir", filepath.Join(t.TempDir(), "run")},
			args...)...); code != process.ExitUsage {
			t.Errorf("up %v: exit code %d, %v", args, code, err)
		}
	}
	t.Setenv("PATH", "")
	_, code, err := run("", "up", "--run-dir", t.TempDir())
	if code != process.ExitFailure || !strings.Contains(err.Error(), "envoy was not found") {
		t.Errorf("exit code %d, %v", code, err)
	}
}
