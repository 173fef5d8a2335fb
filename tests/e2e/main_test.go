// Package e2e tests whole meshes with the real Envoy, started through the `fairlead` binary. Every test's mesh ends
// with the assertions of fleet.Mesh: no proxy rejected an update, and no process is left.
package e2e

import (
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// binaries are the programs under test.
var binaries fleet.Binaries

func TestMain(m *testing.M) {
	fleet.Main(m, &binaries)
}
