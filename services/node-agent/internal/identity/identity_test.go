package identity

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/agenttest"
	"fairlead.dev/services/node-agent/internal/config"
)

func TestOnlyFilesThatAreThereAreASource(t *testing.T) {
	dir := t.TempDir()
	set := config.FileSet{Chain: filepath.Join(dir, "chain"), Key: filepath.Join(dir, "key"), Roots: filepath.Join(dir, "roots")}
	s := config.Secrets{Mounted: []config.FileSet{set}}
	var log testkit.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, ok := mountedFiles(logger, s); ok || log.String() != "" {
		t.Errorf("nothing is there: mounted %t, log %s", ok, &log)
	}
	for _, path := range []string{set.Chain, set.Key, set.Roots} {
		testkit.WriteFile(t, path, nil)
	}
	if got, ok := mountedFiles(logger, s); !ok || got != set || log.String() != "" {
		t.Errorf("all are there: mounted %t, %v, log %s", ok, got, &log)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		t.Fatal(err)
	}
	agenttest.As(t, agenttest.AnotherUser, func() {
		if _, ok := mountedFiles(logger, s); ok {
			t.Error("files that may not be looked at are taken for mounted ones")
		}
	})
	if !strings.Contains(log.String(), set.Chain) || !strings.Contains(log.String(), "permission denied") {
		t.Errorf("the log does not say which path: %s", &log)
	}
}
