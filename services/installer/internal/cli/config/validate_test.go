package config_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestValidateRunsConfigWatcher(t *testing.T) {
	t.Setenv("PATH", "/usr/bin:/bin")
	for name, tc := range map[string]struct {
		code string
		args []string
		out  string
		exit int
	}{
		"text": {"0", []string{"-f", "a,b", "--filename", "-", "c"}, `{"args": "validate --output=text -- a b - c", "input": "in"}`,
			process.ExitOK},
		"json": {"0", []string{"--strict", "--file=-a", "-o", "json"}, `{"args": "validate --output=json --strict -- -a", "input": "in"}`,
			process.ExitOK},
		"yaml":       {"0", []string{"a", "-o", "yaml"}, "args: validate --output=json -- a\ninput: in", process.ExitOK},
		"refused":    {"3", []string{"a", "-o", "yaml"}, "args: validate --output=json -- a\ninput: in", process.ExitRefused},
		"wrong path": {"2", []string{"a"}, `{"args": "validate --output=text -- a", "input": "in"}`, process.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := clitest.Run("in", append([]string{"validate", "--bin-dir", clitest.FakeWatcher(t, tc.code)}, tc.args...)...)
			if strings.TrimSpace(out) != tc.out || code != tc.exit {
				t.Errorf("output %q, exit code %d, %v", out, code, err)
			}
			if tc.exit != process.ExitOK && err.Error() != "no" {
				t.Errorf("error %q, want config-watcher's own", err)
			}
		})
	}
}

func TestValidateUsage(t *testing.T) {
	t.Setenv("PATH", "")
	if _, code, err := clitest.Run("", "validate"); code != process.ExitUsage || !strings.Contains(err.Error(), "-f") {
		t.Errorf("no file: exit code %d, %v", code, err)
	}
	if _, code, err := clitest.Run("", "validate", "a", "-o", "xml"); code != process.ExitUsage {
		t.Errorf("unknown format: exit code %d, %v", code, err)
	}
	if _, code, err := clitest.Run("", "validate", "a", "--bin-dir", t.TempDir()); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "config-watcher was not found") {
		t.Errorf("no config-watcher: exit code %d, %v", code, err)
	}
}
