// Package e2e tests whole meshes with the real Envoy, started through the `fairlead` binary. Every test's mesh ends with the assertions of
// fleet.Mesh: no proxy rejected an update, and no process is left.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// binaries are the programs under test.
var binaries fleet.Binaries

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fl-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binaries, err = fleet.Build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
