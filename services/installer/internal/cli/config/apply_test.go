package config_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
)

func TestApplyGetDelete(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, clitest.Object)
	out, _, err := m.Run("", "config", "apply", "-f", name, "--dry-run")
	if err != nil || out != "VirtualService shop/web created (dry run)\n" || m.Object("VirtualService", "shop", "web") != nil {
		t.Errorf("dry run: %q, %v", out, err)
	}
	if out, _, err = m.Run(clitest.Object, "config", "apply", "-f", "-"); err != nil || out != "VirtualService shop/web created\n" {
		t.Errorf("standard input: %q, %v", out, err)
	}
	if out, _, err = m.Run("", "config", "get"); err != nil ||
		!strings.Contains(out, "shop        VirtualService   web    1            memory") {
		t.Errorf("get: %q, %v", out, err)
	}
	if out, _, err = m.Run("", "config", "get", "vs", "web", "-n", "shop", "-o", "yaml"); err != nil ||
		!strings.Contains(out, "hosts:\n  - web") {
		t.Errorf("get -o yaml: %q, %v", out, err)
	}
	out, _, err = m.Run("", "config", "get", "virtualservices", "-o", "json")
	var list struct {
		Kind  string
		Items []struct{ Metadata struct{ Name string } }
	}
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || list.Kind != "List" || len(list.Items) != 1 ||
		list.Items[0].Metadata.Name != "web" {
		t.Errorf("get -o json: %q, %v", out, err)
	}
	if out, _, err = m.Run("", "config", "get", "vs/web", "-n", "shop", "-o", "jsonpath={.metadata.name} {.spec.hosts[0]}"); err != nil ||
		out != "web web\n" {
		t.Errorf("get -o jsonpath: %q, %v", out, err)
	}
	if _, code, err := m.Run("", "config", "get", "vs/web", "-n", "shop", "-o", "jsonpath={.metadata"); code != process.ExitUsage {
		t.Errorf("get -o jsonpath that is cut off: %d, %v", code, err)
	}
	if _, code, err := m.Run("", "config", "get", "-w", "-o", "json"); code != process.ExitUsage {
		t.Errorf("get -w -o json: %d, %v", code, err)
	}
	if out, _, err = m.Run("", "config", "delete", "-f", name); err != nil || out != "VirtualService shop/web deleted\n" {
		t.Errorf("delete: %q, %v", out, err)
	}
	if _, code, err := m.Run("", "config", "get", "vs", "web", "-n", "shop"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "is not there") {
		t.Errorf("get of nothing: %d, %v", code, err)
	}
	if _, code, err := m.Run("", "config", "delete", "vs", "web", "-n", "shop"); code != process.ExitFailure {
		t.Errorf("delete of nothing: %d, %v", code, err)
	}
}

func TestWhatIsPrintedCanBeApplied(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, clitest.Object+"---\n{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: shop}, data: {a: Yg==}}\n")
	if _, _, err := m.Run("", "config", "apply", "-f", name); err != nil {
		t.Fatal(err)
	}
	out, _, err := m.Run("", "config", "get", "-A", "-o", "yaml")
	if text, list, ok := strings.Cut(out, "\n"); err != nil || !ok || !strings.Contains(text, "Secrets are left out, 1 of them") ||
		strings.Contains(list, "kind: Secret") {
		t.Fatalf("%v, %s", err, out)
	} else if out, _, err = m.Run(list, "config", "apply", "-f", "-"); err != nil || !strings.HasPrefix(out, "VirtualService shop/web ") {
		t.Errorf("%v, %s", err, out)
	}
	if out, _, err = m.Run("", "config", "get", "secrets", "-A", "-o", "yaml"); err != nil || !strings.Contains(out, "kind: Secret") {
		t.Errorf("%v, %s", err, out)
	}
}

func TestWatchPrintsChanges(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, clitest.Object)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &clitest.SharedBuffer{}
	done := make(chan error, 1)
	go func() {
		done <- cli.Run(ctx, command.Env{Out: shown, Err: shown, Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }},
			append([]string{"config", "get", "vs", "-A", "-w"}, m.Flags...))
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
	if _, _, err := m.Run("", "config", "apply", "-f", name); err != nil {
		t.Fatal(err)
	}
	prints("shop   VirtualService   web   1   memory")
	if _, _, err := m.Run("", "config", "delete", "-f", name); err != nil {
		t.Fatal(err)
	}
	prints("gone")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestApplyWarns(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, strings.ReplaceAll(clitest.Object, "web", "ineffective"))
	const want = "VirtualService shop/ineffective created\n  warning: VirtualService shop/ineffective: spec: has no effect\n"
	if out, _, err := m.Run("", "config", "apply", "-f", name); err != nil || out != want {
		t.Errorf("%q, %v", out, err)
	}
	if out, _, err := m.Run("", "config", "apply", "-f", name, "-o", "json"); err != nil ||
		!strings.Contains(out, `"VirtualService shop/ineffective: spec: has no effect"`) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestApplyStrictRefusesWarnings(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, strings.ReplaceAll(clitest.Object, "web", "ineffective"))
	_, code, err := m.Run("", "config", "apply", "--strict", "-f", name)
	if code != process.ExitRefused || err == nil ||
		!strings.Contains(err.Error(), "nothing was changed:\n  VirtualService shop/ineffective: spec: has no effect") {
		t.Errorf("%d, %v", code, err)
	}
	if m.Object("VirtualService", "shop", "ineffective") != nil {
		t.Error("it was written")
	}
	if out, _, err := m.Run("", "config", "apply", "--strict", "-f", clitest.File(t, clitest.Object)); err != nil ||
		out != "VirtualService shop/web created\n" {
		t.Errorf("an object without warnings: %q, %v", out, err)
	}
}

func TestRefusedInput(t *testing.T) {
	m := clitest.New(t)
	name := clitest.File(t, clitest.Object+"---\n"+strings.ReplaceAll(clitest.Object, "web", "broken"))
	_, code, err := m.Run("", "config", "apply", "-f", name)
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
	m := clitest.New(t)
	name := clitest.File(t, clitest.Object)
	node := func(pod string) string { return "sidecar~127.0.0.1~" + pod + ".shop~shop.svc.cluster.local" }
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: node("a")}, {NodeId: node("b")}}, nil)
	out, _, err := m.Run("", "config", "apply", "-f", name, "--wait", "-o", "json")
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
	out, code, err := m.Run("", "config", "apply", "-f", name, "--wait")
	if code != process.ExitFailure || !strings.Contains(err.Error(), "1 pending, 1 rejected") {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, want := range []string{"pending: a.shop", "rejected: b.shop, LDS: no such filter"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}
