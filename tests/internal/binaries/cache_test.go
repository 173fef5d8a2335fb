package binaries

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestCache runs tools/build-cached.sh, twice at once, on modules whose programs are small.
func TestCache(t *testing.T) {
	tools, cache := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("../../../tools/build-cached.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"build-cached.sh":         string(script),
		"two/go.mod":              "module example\n\ngo 1.26\n\ntool (\n\texample/istioctl\n\texample/pilot-agent\n)\n",
		"two/go.sum":              "",
		"two/istioctl/main.go":    "package main\n\nfunc main() { println(\"istioctl\") }\n",
		"two/pilot-agent/main.go": "package main\n\nfunc main() { println(\"pilot-agent\") }\n",
		"itself/go.mod":           "module example/itself\n\ngo 1.26\n\ntool example/itself\n",
		"itself/go.sum":           "",
		"itself/main.go":          "package main\n\nfunc main() { println(\"itself\") }\n",
	} {
		path := filepath.Join(tools, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (printed, said string) {
		var errors strings.Builder
		cmd := exec.CommandContext(t.Context(), filepath.Join(tools, "build-cached.sh"), args...)
		cmd.Env = append(os.Environ(), "FAIRLEAD_CACHE="+cache)
		cmd.Stderr = &errors
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("build-cached.sh %v: %v: %s", args, err, errors.String())
		}
		return strings.TrimSpace(string(out)), errors.String()
	}
	announced, said := run("--dir", "two")
	if filepath.Dir(announced) != cache || said != "" {
		t.Errorf("--dir prints %q, and %q", announced, said)
	}
	if _, err := os.Stat(announced); err == nil {
		t.Error("--dir builds")
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if dir, _ := run("two"); dir != announced {
				t.Errorf("built in %q, not in %q", dir, announced)
			}
		})
	}
	both.Wait()
	for _, program := range []string{"istioctl", "pilot-agent"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(announced, program)).CombinedOutput()
		if err != nil || string(out) != program+"\n" {
			t.Errorf("%s: %q, %v", program, out, err)
		}
	}
	if _, said := run("two"); said != "" {
		t.Errorf("builds again: %s", said)
	}
	list, said := run("two", "itself")
	first, second, _ := strings.Cut(list, ":")
	if first != announced || !strings.Contains(said, "building itself into "+second) {
		t.Errorf("built two modules in %s, saying: %s", list, said)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(second, "itself")).CombinedOutput(); err != nil ||
		string(out) != "itself\n" {
		t.Errorf("itself: %q, %v", out, err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, ".two-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.WriteFile(filepath.Join(tools, "two/go.sum"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, _ := run("--dir", "two"); other == announced {
		t.Error("other versions have the same directory")
	}
	if err := os.WriteFile(filepath.Join(tools, "itself/main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, _ := run("--dir", "itself"); other == second {
		t.Error("another source has the same directory")
	}
}
