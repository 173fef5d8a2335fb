package scenarios

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatCannotRunFails: whoever names scenarios must not be told that all is well when none has run.
func TestWhatCannotRunFails(t *testing.T) {
	empty, mistaken := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(mistaken, "x.yaml"),
		[]byte("name: x\nabout: x\ncovers: [x]\ntopology: standard\nsteps:\n- {wait: soon}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		path   string
		fails  bool
		output string
	}{
		"no such directory":    {[]string{"-dir", "nowhere"}, os.Getenv("PATH"), true, "nowhere: no scenario there"},
		"no scenario":          {[]string{"-dir", empty}, os.Getenv("PATH"), true, "no scenario there"},
		"no such certificates": {[]string{"-certificates", "none"}, os.Getenv("PATH"), true, "-certificates none: want ca or files"},
		"no such source":       {[]string{"-source", "nowhere"}, os.Getenv("PATH"), true, "-source nowhere: want store or kubernetes"},
		"Kubernetes without programs": {[]string{"-dir", "examples", "-source", "kubernetes"}, os.Getenv("PATH"), true,
			"KUBE_BIN names no directories"},
		"a mistake":                    {[]string{"-dir", mistaken}, os.Getenv("PATH"), true, "x.yaml:6: /steps/0/wait"},
		"no programs, but a directory": {[]string{"-dir", "examples"}, empty, true, "needs "},
		"no programs, but a name":      {[]string{"-test.run", "http-weights"}, empty, true, "needs "},
		"no programs":                  {[]string{"-test.v"}, empty, false, "SKIP"},
	} {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if name != "no programs, but a name" {
				args = append([]string{"-test.run", "^TestScenarios$"}, args...)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
			cmd.Env = append(os.Environ(), "PATH="+tc.path, "CI=", "KUBE_BIN=")
			out, err := cmd.CombinedOutput()
			if (err != nil) != tc.fails || !strings.Contains(string(out), tc.output) {
				t.Errorf("%v, want %q in\n%s", err, tc.output, out)
			}
		})
	}
}
