package config_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestMigrateRunsConfigWatcher(t *testing.T) {
	t.Setenv("PATH", "/usr/bin:/bin")
	out, code, err := clitest.Run("in", "migrate", "gateway-api", "-f", "a", "-", "--class", "b", "--bin-dir", clitest.FakeWatcher(t, "0"))
	if want := `{"args": "migrate-gateway-api --class=b -- a -", "input": "in"}`; !strings.Contains(out, want) || code != process.ExitOK {
		t.Errorf("output %q, exit code %d, %v", out, code, err)
	}
	if _, code, err := clitest.Run("", "migrate", "gateway-api", "a", "--bin-dir", clitest.FakeWatcher(t, "3")); code != process.ExitRefused {
		t.Errorf("refused: exit code %d, %v", code, err)
	}
	if _, code, err := clitest.Run("", "migrate", "gateway-api"); code != process.ExitUsage {
		t.Errorf("no file: exit code %d, %v", code, err)
	}
}
