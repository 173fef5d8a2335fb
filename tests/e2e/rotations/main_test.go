// Package rotations tests that nobody notices when the ca's signer is swapped or its root rotated: a mesh under STRICT
// mTLS with everybody that takes part in one (sidecars of ours and of Istio's, a proxyless program, a machine), new
// connections all the time, and streams that stay open. Nothing may fail meanwhile.
package rotations

import (
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

func TestMain(m *testing.M) { userns.Main(m) }

// istio is where Istio's own programs are, and the template of their Envoy's bootstrap.
func istio(t *testing.T) (dir, template string) {
	t.Helper()
	hostmesh.Needs(t)
	dir, template = os.Getenv("ISTIO_BIN"), os.Getenv("ISTIO_BOOTSTRAP_TEMPLATE")
	if dir == "" || template == "" {
		t.Skip("ISTIO_BIN and ISTIO_BOOTSTRAP_TEMPLATE are not set: run `make rotations`, which builds Istio's pilot-agent")
	}
	return dir, template
}

// program is one of a directory that a variable of `make rotations` names, or a list of them as in PATH.
func program(t *testing.T, variable, name string) string {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv(variable)) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skipf("%s=%q has no %s: run `make rotations`", variable, os.Getenv(variable), name)
	return ""
}
