package analysis_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/local/programs"
)

// program is a config-watcher that prints its arguments, and exits with a code.
func program(t *testing.T, code string) analysis.Program {
	return analysis.Program{Finder: programs.Finder{
		Executable: filepath.Join(t.TempDir(), "fairlead"), BinDir: clitest.FakeWatcher(t, code), Getenv: func(string) string { return "" },
	}, In: strings.NewReader("")}
}

func TestConfigWatcherGetsTheOptions(t *testing.T) {
	text, err := program(t, "0").JSON(t.Context(), analysis.Options{
		Kube: true, Context: "prod", Files: []string{"mesh.yaml"}, Suppress: []string{"A=*"}, Timeout: time.Minute,
	})
	const want = "analyze --failure-threshold=error --output-threshold=info --timeout=1m0s --output=json --context=prod --kube " +
		"--all-namespaces --suppress=A=* -- mesh.yaml"
	if err != nil || !strings.Contains(string(text), `"`+want+`"`) {
		t.Errorf("%s, %v", text, err)
	}
	if text, _ = program(t, "0").JSON(t.Context(), analysis.Options{Namespace: "shop"}); strings.Contains(string(text), "--all-namespaces") {
		t.Errorf("of one namespace: %s", text)
	}
}

// TestFailuresKeepTheirCode: the last line that config-watcher says is the error, and its output is there all the same.
func TestFailuresKeepTheirCode(t *testing.T) {
	text, err := program(t, "79").JSON(t.Context(), analysis.Options{})
	if process.ExitCode(err) != analysis.FoundErrors || err.Error() != "no" || len(text) == 0 {
		t.Errorf("analyze: %s, %v", text, err)
	}
	var out strings.Builder
	if err := program(t, "3").Validate(t.Context(), []string{"a"}, true, true, &out); process.ExitCode(err) != process.ExitRefused ||
		!strings.Contains(out.String(), "validate --output=json --strict -- a") {
		t.Errorf("validate: %s, %v", out.String(), err)
	}
	missing := analysis.Program{Finder: programs.Finder{Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }}}
	if err := missing.Validate(t.Context(), nil, false, false, &out); err == nil {
		t.Error("a config-watcher that is not there judges")
	}
}

// TestRefusedObjects: of the verdicts those that refuse count, whatever else is said of an object.
func TestRefusedObjects(t *testing.T) {
	const verdicts = `{"objects": [{"file": "stdin", "line": 3, "kind": "A", "errors": [{"field": "spec.a", "message": "b; c"}, {"message": "d"}]},` +
		`{"file": "f.yaml", "line": 1, "errors": [], "warnings": [{"message": "e"}]}]}`
	for code, want := range map[string]map[string]string{"3": {"-:3": "spec.a: b; c; d"}, "2": nil} {
		p := program(t, code)
		watcher := filepath.Join(p.Finder.BinDir, "config-watcher")
		testkit.WriteFile(t, watcher, []byte("#!/bin/sh\ncat <<'.'\n"+verdicts+"\n.\nexit "+code+"\n"))
		if err := os.Chmod(watcher, 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := p.Refused(t.Context(), []string{"-", "f.yaml"})
		if !maps.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("exit code %s: %v, %v", code, got, err)
		}
	}
	if got, err := program(t, "0").Refused(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("nothing is refused: %v, %v", got, err)
	}
}

func TestSeverities(t *testing.T) {
	var s analysis.Severity
	if err := s.Set("Warning"); err != nil || s != "warning" {
		t.Errorf("%q, %v", s, err)
	}
	if err := s.Set("eror"); err == nil || !strings.Contains(err.Error(), "error") {
		t.Errorf("%v", err)
	}
}
