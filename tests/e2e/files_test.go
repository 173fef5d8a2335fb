package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// harmed is how long the mesh's file is harmed: a writer that takes longer is not one that replaces a file.
const harmed = 2 * time.Second

// TestFileVanishes harms the file that holds the whole mesh while requests go on: none may fail. Status and console
// tell of it. When the file stays away the objects go, and both tell that as well.
func TestFileVanishes(t *testing.T) {
	const grace = 15 * time.Second
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}, Args: []string{"--file-grace-period", grace.String()}})
	m.WaitPods(t, "client-0", "server-v1-0")
	file := filepath.Join(m.ConfigDir, "pair.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client := m.From(t, "client-0")
	mustReach(t, m, client, clientID)

	for _, c := range []struct {
		name, told string
		harm, mend func()
	}{
		{"moved away and back", "is gone", func() { must(os.Rename(file, file+"-aside")) }, func() { must(os.Rename(file+"-aside", file)) }},
		{"emptied", "is empty", func() { must(os.Truncate(file, 0)) }, func() { must(os.WriteFile(file, content, 0o600)) }},
		{"cut off in the middle", "ends ", func() { must(os.Truncate(file, int64(len(content)-15))) },
			func() { must(os.WriteFile(file, content, 0o600)) }},
		{"rewritten slowly", "", func() { rewrite(t, file, content, true) }, func() {}},
		{"rewritten slowly, opened for each line", "", func() { rewrite(t, file, content, false) }, func() {}},
		{"away while config-watcher is killed", "is gone", func() {
			must(os.Rename(file, file+"-aside"))
			awaitStatus(t, m, "is gone")
			before := until(t, m)
			m.Kill(t, "config-watcher")
			m.Eventually(t, testkit.Patience, func() error {
				if after := until(t, m); after != before {
					return fmt.Errorf("the grace ended at %q before the restart, and ends at %q now", before, after)
				}
				return nil
			})
		}, func() { must(os.Rename(file+"-aside", file)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 2)
			m.Eventually(t, testkit.Patience, load.More(20))
			begin := time.Now()
			c.harm()
			if c.told != "" {
				awaitStatus(t, m, c.told)
			}
			m.Eventually(t, testkit.Patience, func() error {
				if took := time.Since(begin); took < harmed {
					return fmt.Errorf("harmed for %s", took)
				}
				return nil
			})
			c.mend()
			m.Eventually(t, testkit.Patience, func() error {
				if code, out, errs := m.CLI(t, "config", "status"); code != 0 || strings.Contains(out, "STAYS") {
					return fmt.Errorf("still not whole: %s%s", out, errs)
				}
				return nil
			})
			m.Eventually(t, testkit.Patience, load.More(50))
			load.Stop(t)
		})
	}
	if out := m.Output(t); !strings.Contains(out, "config/pair.yaml is gone: its 3 last objects stay until ") ||
		!strings.Contains(out, "config/pair.yaml is whole again") {
		t.Errorf("the console does not tell:\n%s", out)
	}

	t.Run("a file with a copy that has no effect is gone", func(t *testing.T) {
		second := filepath.Join(m.ConfigDir, "zz.yaml")
		must(os.WriteFile(second, content, 0o600))
		says := func(command string, want string) {
			t.Helper()
			m.Eventually(t, testkit.Patience, func() error {
				if code, out, errs := m.CLI(t, "config", command); code != 0 || !strings.Contains(out, want) {
					return fmt.Errorf("config %s lacks %q: %s%s", command, want, out, errs)
				}
				return nil
			})
		}
		says("status", "config/zz.yaml:")
		must(os.Remove(second))
		says("status", "config/zz.yaml is gone")
		if _, out, _ := m.CLI(t, "config", "get", "service", "server", "-n", "apps"); !strings.Contains(out, "config/pair.yaml:") ||
			strings.Contains(out, "not whole") {
			t.Errorf("the object in force is said to go: %s", out)
		}
	})

	t.Run("gone for good", func(t *testing.T) {
		must(os.Rename(file, file+"-aside"))
		awaitStatus(t, m, "is gone")
		mustReach(t, m, client, clientID)
		m.Eventually(t, testkit.Patience, func() error {
			if out := m.Output(t); !strings.Contains(out, "config/pair.yaml did not become whole again: its 3 last objects are removed") {
				return fmt.Errorf("the console does not tell:\n%s", out)
			}
			return nil
		})
		if code, out, errs := m.CLI(t, "config", "get", "service", "server", "-n", "apps"); code != 1 || !strings.Contains(errs, "not found") {
			t.Errorf("exit code %d: %s%s", code, out, errs)
		}
		m.Eventually(t, takesEffect, func() error {
			if a, err := client.Get(t.Context(), "http://server/"); err == nil && a.Status == 200 {
				return fmt.Errorf("the service is served still")
			}
			return nil
		})
		must(os.Rename(file+"-aside", file))
		mustReach(t, m, client, clientID)
	})
}

// awaitStatus waits until `fairlead config status` names the file's objects.
func awaitStatus(t *testing.T, m *fleet.Mesh, told string) {
	t.Helper()
	m.Eventually(t, testkit.Patience, func() error {
		code, out, errs := m.CLI(t, "config", "status")
		for _, want := range []string{"STAYS", "config/pair.yaml:", told} {
			if code != 0 || !strings.Contains(out, want) {
				return fmt.Errorf("status lacks %q: %s%s", want, out, errs)
			}
		}
		return nil
	})
}

// until is when the Service's grace ends, as status tells; empty while nobody answers.
func until(t *testing.T, m *fleet.Mesh) string {
	t.Helper()
	_, out, _ := m.CLI(t, "config", "status", "service/server", "-n", "apps")
	_, text, _ := strings.Cut(out, "the object stays until ")
	text, _, _ = strings.Cut(text, ";")
	return text
}

// rewrite writes a file anew in pieces of some lines, for as long as a file is harmed.
func rewrite(t *testing.T, path string, content []byte, keepOpen bool) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(content), "\n")
	const pieces = 20
	size := len(lines)/pieces + 1
	for len(lines) > 0 {
		n := min(size, len(lines))
		if !keepOpen {
			_ = f.Close()
			if f, err = os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.WriteString(strings.Join(lines[:n], "")); err != nil {
			t.Fatal(err)
		}
		lines = lines[n:]
		time.Sleep(harmed / pieces) // the writer's own slowness, not a wait for anything
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
