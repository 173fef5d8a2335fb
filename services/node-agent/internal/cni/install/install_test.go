package install

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
)

const bridge = `{"cniVersion": "1.0.0", "name": "cluster", "x": {"y": 1}, "plugins": [{"type": "bridge", "z": [1]}, {"type": "portmap"}]}`

func node(t *testing.T) *Installer {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		Program: filepath.Join(dir, "program"), BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "conf"),
		Plugin: plugin.Config{Socket: "/s", AgentName: "a"}, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler),
	}
	for _, d := range []string{c.BinDir, c.ConfDir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, c.Program, "program")
	return New(c)
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// chain lists the types of the plugins of a configuration.
func chain(t *testing.T, path string) string {
	t.Helper()
	var l struct {
		Plugins []struct{ Type, Socket string }
	}
	if err := json.Unmarshal([]byte(read(t, path)), &l); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range l.Plugins {
		out = append(out, p.Type+p.Socket)
	}
	return strings.Join(out, " ")
}

func ensure(t *testing.T, i *Installer) string {
	t.Helper()
	changed, err := i.ensure()
	if err != nil {
		t.Fatal(err)
	}
	for k, c := range changed {
		changed[k] = filepath.Base(c)
	}
	return strings.Join(changed, " ")
}

func TestThePluginIsTheLastOfTheFirstConfiguration(t *testing.T) {
	i := node(t)
	first, second := filepath.Join(i.ConfDir, "10-a.conflist"), filepath.Join(i.ConfDir, "20-b.conflist")
	put(t, first, bridge)
	put(t, second, bridge)
	if got := ensure(t, i); got != "fairlead-cni 10-a.conflist" {
		t.Errorf("changed %q", got)
	}
	if got := chain(t, first); got != "bridge portmap fairlead-cni/s" {
		t.Errorf("chain %q", got)
	}
	if got := ensure(t, i); got != "" {
		t.Errorf("a second time %q", got)
	}
	info, err := os.Stat(filepath.Join(i.BinDir, plugin.Name))
	if err != nil || info.Mode() != 0o755 || read(t, second) != bridge {
		t.Errorf("program %v, %v; the other configuration %s", info, err, read(t, second))
	}
	if info, err = os.Stat(first); err != nil || info.Mode() != 0o644 {
		t.Errorf("the mode has changed: %v, %v", info, err)
	}
	i.Plugin.Socket = "/t"
	if ensure(t, i); chain(t, first) != "bridge portmap fairlead-cni/t" {
		t.Errorf("chain after a change %q", chain(t, first))
	}
	var before, after map[string]any
	if err := i.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(bridge), &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(read(t, first)), &after); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("after the removal: %s", diff)
	}
	if left, _ := os.ReadDir(i.BinDir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := i.Remove(); err != nil {
		t.Errorf("nothing to remove: %v", err)
	}
}

func TestAConfigurationOfOnePluginBecomesAListThatComesFirst(t *testing.T) {
	i := node(t)
	single := filepath.Join(i.ConfDir, "10-a.conf")
	put(t, single, `{"cniVersion": "0.4.0", "name": "n", "type": "ptp", "ipam": {}}`)
	if got := ensure(t, i) + ensure(t, i); got != "fairlead-cni 10-a-fairlead.conflist" {
		t.Errorf("changed %q", got)
	}
	if got := chain(t, filepath.Join(i.ConfDir, "10-a-fairlead.conflist")); got != "ptp fairlead-cni/s" {
		t.Errorf("chain %q", got)
	}
	if all, err := i.configurations(); err != nil || filepath.Base(all[0]) != "10-a-fairlead.conflist" {
		t.Errorf("the runtime's order: %q, %v", all, err)
	}
	if err := i.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(i.ConfDir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestAPluginThatIsInNoListHasAFileOfItsOwn(t *testing.T) {
	i := node(t)
	i.Unchained = true
	put(t, filepath.Join(i.ConfDir, "10-a.conflist"), bridge)
	if got := ensure(t, i); got != "fairlead-cni "+standalone {
		t.Errorf("changed %q", got)
	}
	var c plugin.Config
	if err := json.Unmarshal([]byte(read(t, filepath.Join(i.ConfDir, standalone))), &c); err != nil || c.Type != plugin.Name ||
		c.CNIVersion == "" {
		t.Errorf("%+v, %v", c, err)
	}
	if err := i.Remove(); err != nil || read(t, filepath.Join(i.ConfDir, "10-a.conflist")) != bridge {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(i.ConfDir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestWhatCannotBeReadIsNotChanged(t *testing.T) {
	for name, content := range map[string]string{
		"10-a.conflist": "{", "11-a.conflist": "null", "12-a.conflist": `{"plugins": {}}`, "13-a.conflist": `{"name": "n"}`,
		"14-a.conf": `{"name": "n"}`, "15-a.conf": "[]",
	} {
		i := node(t)
		path := filepath.Join(i.ConfDir, name)
		put(t, path, content)
		if _, err := i.ensure(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", content, err)
		}
		if err := i.Remove(); err != nil || read(t, path) != content {
			t.Errorf("%s: now %s, %v", content, read(t, path), err)
		}
	}
	i := node(t)
	if _, err := i.ensure(); err == nil || !strings.Contains(err.Error(), "--cni-conf-dir") {
		t.Errorf("no configuration: %v", err)
	}
	if err := os.Remove(i.Program); err != nil {
		t.Fatal(err)
	}
	if _, err := i.ensure(); err == nil || !strings.Contains(err.Error(), "program") {
		t.Errorf("no program: %v", err)
	}
}

func TestRunRepairsWhatSomethingElseReplaces(t *testing.T) {
	i := node(t)
	if i.Ready() == nil {
		t.Error("ready before it has run")
	}
	path := filepath.Join(i.ConfDir, "10-a.conflist")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	installed := func() error {
		if err := i.Ready(); err != nil {
			return err
		}
		if raw, err := os.ReadFile(path); err != nil || !strings.Contains(string(raw), plugin.Name) {
			return fmt.Errorf("configuration %s, %w", raw, err)
		}
		if raw, err := os.ReadFile(filepath.Join(i.BinDir, plugin.Name)); err != nil || string(raw) != "program" {
			return fmt.Errorf("program %q, %w", raw, err)
		}
		return nil
	}
	put(t, path, bridge) // the node's network comes later
	testkit.Eventually(t, testkit.Patience, installed)
	put(t, path, bridge)
	testkit.Eventually(t, testkit.Patience, installed)
	if err := os.Remove(filepath.Join(i.BinDir, plugin.Name)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, installed)
	put(t, filepath.Join(i.BinDir, plugin.Name), "another")
	testkit.Eventually(t, testkit.Patience, installed)
}

func FuzzInsert(f *testing.F) {
	f.Add([]byte(bridge))
	f.Add([]byte(`{"plugins": [{"type": "fairlead-cni"}, null, 1, {"type": "fairlead-cni"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		with, err := insert(text, plugin.Config{Socket: "/s"})
		if err != nil {
			return
		}
		again, err := insert(with, plugin.Config{Socket: "/s"})
		if err != nil || string(again) != string(with) {
			t.Errorf("a second time it is %s, %v, not %s", again, err, with)
		}
		out, had, err := without(with)
		if err != nil || !had {
			t.Errorf("without it is %s, %t, %v", out, had, err)
		}
		if _, had, err = without(out); err != nil || had {
			t.Errorf("without it, it has it: %s, %v", out, err)
		}
	})
}
