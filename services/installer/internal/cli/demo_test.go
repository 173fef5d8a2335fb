package cli_test

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// The demo runs `fairlead up` with flags of its own, which `up` must accept.
func TestDemoStartsAMesh(t *testing.T) {
	mesh := filepath.Join(t.TempDir(), "mesh.yaml")
	testkit.WriteFile(t, mesh, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"))
	out, diagnostics, _, err := split(nil, "demo", "--mesh", mesh, "--envoy", "/nowhere/envoy", "--loopback-range", "auto")
	if err == nil || !strings.Contains(out+diagnostics+err.Error(), "/nowhere") || strings.Contains(out+diagnostics, "--file-grace-period") {
		t.Errorf("the mesh does not start as far as to look for its programs: %q, %q, %v", out, diagnostics, err)
	}
}
