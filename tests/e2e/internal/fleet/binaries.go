// Package fleet starts whole meshes for the end-to-end tests, through the `fairlead` binary as a user does, and looks at them from outside: as a
// client of a sidecar, through Envoy's admin interface, and with the CLI.
package fleet

import (
	"context"
	"path/filepath"

	"fairlead.dev/tests/internal/binaries"
)

// Binaries tells where the programs under test are.
type Binaries struct {
	binaries.Set
	// Echo is the tests' application.
	Echo string
}

// Build provides the binaries, see binaries.Find. The echo application is always built.
func Build(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Echo: filepath.Join(dir, "echo")}
	var err error
	if b.Set, err = binaries.Find(ctx, dir); err != nil {
		return b, err
	}
	return b, binaries.Build(ctx, b.Echo, "fairlead.dev/tests/e2e/echo")
}
