package oracle

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestCache runs tools/istio/build.sh, twice at once, on a module whose programs are small.
func TestCache(t *testing.T) {
	module, cache := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("../../tools/istio/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"build.sh":            string(script),
		"go.mod":              "module example\n\ngo 1.26\n\ntool (\n\texample/istioctl\n\texample/pilot-agent\n)\n",
		"go.sum":              "",
		"istioctl/main.go":    "package main\n\nfunc main() { println(\"istioctl\") }\n",
		"pilot-agent/main.go": "package main\n\nfunc main() { println(\"pilot-agent\") }\n",
	} {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (printed, said string) {
		var errors strings.Builder
		cmd := exec.CommandContext(t.Context(), filepath.Join(module, "build.sh"), args...)
		cmd.Env = append(os.Environ(), "FAIRLEAD_CACHE="+cache)
		cmd.Stderr = &errors
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("build.sh %v: %v: %s", args, err, errors.String())
		}
		return strings.TrimSpace(string(out)), errors.String()
	}
	announced, said := run("--dir")
	if filepath.Dir(announced) != cache || said != "" {
		t.Errorf("--dir prints %q, and %q", announced, said)
	}
	if _, err := os.Stat(announced); err == nil {
		t.Error("--dir builds")
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if dir, _ := run(); dir != announced {
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
	if _, said := run(); said != "" {
		t.Errorf("builds again: %s", said)
	}
	if left, err := filepath.Glob(filepath.Join(cache, ".istio-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.WriteFile(filepath.Join(module, "go.sum"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, _ := run("--dir"); other == announced {
		t.Error("other versions have the same directory")
	}
}
