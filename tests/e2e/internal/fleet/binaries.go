// Package fleet starts whole meshes for the end-to-end tests, through the `fairlead` binary as a user does, and looks
// at them from outside: as a client of a sidecar, through Envoy's admin interface, and with the CLI.
package fleet

import (
	"context"
	"fmt"
	"os"
	"testing"

	"fairlead.dev/tests/internal/binaries"
)

// Binaries tells where the programs under test are.
type Binaries struct {
	binaries.Set
	// Echo is the tests' application.
	Echo string
}

// Build provides the binaries, see binaries.Find. The echo application is e2e-echo in $BIN_DIR, if it is there.
func Build(ctx context.Context, dir string) (b Binaries, err error) {
	if b.Set, err = binaries.Find(ctx, dir); err != nil {
		return b, err
	}
	b.Echo, err = b.Provide(ctx, dir, "e2e-echo", "fairlead.dev/tests/e2e/echo")
	return b, err
}

// Main is a package's TestMain: it provides the binaries in b, builds what else the package has in their directory, and
// runs the tests.
func Main(m *testing.M, b *Binaries, more ...func(ctx context.Context, dir string) error) {
	os.Exit(run(m, b, more))
}

func run(m *testing.M, b *Binaries, more []func(context.Context, string) error) int {
	dir, err := os.MkdirTemp("", "fl-bin")
	if err == nil {
		defer os.RemoveAll(dir)
		*b, err = Build(context.Background(), dir)
	}
	for _, build := range more {
		if err == nil {
			err = build(context.Background(), dir)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
