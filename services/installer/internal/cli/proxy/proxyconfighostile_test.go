package proxy_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// TestDumpWithoutEnd: a file that never ends is refused once it is longer than objectfile.MaxFileBytes.
func TestDumpWithoutEnd(t *testing.T) {
	_, code, err := clitest.Run("", "proxy-config", "clusters", "-f", "/dev/zero")
	if code == process.ExitOK || err == nil || !strings.Contains(err.Error(), "/dev/zero") {
		t.Errorf("exit code %d, %v", code, err)
	}
}
