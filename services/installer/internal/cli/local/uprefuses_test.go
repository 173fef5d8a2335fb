package local_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestUpRefuses(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {a: b}}\n  " +
		"template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: web, image: web}]}\n"
	bin := t.TempDir()
	for _, name := range []string{"ca", "config-watcher", "xds-server", "node-agent", "envoy"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	up := func(content string) (int, error) {
		_, code, err := clitest.Run("", "up", "--bin-dir", bin, "--run-dir", filepath.Join(t.TempDir(), "run"), "-f", clitest.File(t, content))
		return code, err
	}
	if code, err := up(deployment); code != process.ExitRefused ||
		!strings.Contains(err.Error(), "Deployment default/web: spec.template.spec.containers[0].command") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if code, err := up("kind: ["); code != process.ExitRefused || !strings.Contains(err.Error(), "objects.yaml:1") {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, args := range [][]string{{"-f", "nofile"}, {"mesh.yaml"}} {
		if _, code, err := clitest.Run("", append([]string{"up", "--bin-dir", bin, "--run-dir", filepath.Join(t.TempDir(), "run")},
			args...)...); code != process.ExitUsage {
			t.Errorf("up %v: exit code %d, %v", args, code, err)
		}
	}
	t.Setenv("PATH", "")
	_, code, err := clitest.Run("", "up", "--run-dir", t.TempDir())
	if code != process.ExitFailure || !strings.Contains(err.Error(), "envoy was not found") {
		t.Errorf("exit code %d, %v", code, err)
	}
}
