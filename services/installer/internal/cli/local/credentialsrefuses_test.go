package local_test

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// TestCredentialsRefuses; what the command writes is used by the tests of stock clients (tests/e2e/thirdparty).
func TestCredentialsRefuses(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "run")
	for name, tc := range map[string]struct {
		args []string
		says string
		code int
	}{
		"no account":        {[]string{"--out", "x"}, "accepts 1 arg", process.ExitUsage},
		"half an account":   {[]string{"web", "--out", "x"}, "namespace/service-account", process.ExitUsage},
		"no directory":      {[]string{"apps/web"}, "--out is required", process.ExitUsage},
		"an empty life":     {[]string{"apps/web", "--out", "x", "--ttl", "1s"}, "less than a minute", process.ExitUsage},
		"no mesh that runs": {[]string{"apps/web", "--out", "x"}, nowhere, process.ExitFailure},
	} {
		_, code, err := clitest.Run("", append([]string{"credentials", "--run-dir", nowhere}, tc.args...)...)
		if code != tc.code || err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: exit code %d, %v; want %d and %q", name, code, err, tc.code, tc.says)
		}
	}
}
