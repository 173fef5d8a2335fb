package local_test

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// The demo runs `fairlead up` with flags that it chooses, which `up` must accept.
func TestDemoStartsAMesh(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // a demo that fails keeps its directory
	mesh := filepath.Join(t.TempDir(), "mesh.yaml")
	testkit.WriteFile(t, mesh, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"))
	out, diagnostics, _, err := clitest.Split(nil, "demo", "--mesh", mesh, "--envoy", "/nowhere/envoy", "--loopback-range", "auto")
	if err == nil || !strings.Contains(out+diagnostics+err.Error(), "/nowhere") || strings.Contains(out+diagnostics, "--file-grace-period") {
		t.Errorf("the mesh does not start as far as to look for its programs: %q, %q, %v", out, diagnostics, err)
	}
}

func TestEmptyFileIsRefusedByItsName(t *testing.T) {
	m := clitest.New(t)
	path := filepath.Join(t.TempDir(), "empty.yaml")
	testkit.WriteFile(t, path, []byte("\n \n"))
	_, code, err := m.Run("", "config", "apply", "-f", path)
	if code != process.ExitRefused || err == nil || !strings.Contains(err.Error(), "empty.yaml: holds no object; write one") {
		t.Errorf("exit code %d, %v", code, err)
	}
}
