// Package fleet starts whole meshes for the end-to-end tests, through the `fairlead` binary as a user does, and looks at them from outside: as a
// client of a sidecar, through Envoy's admin interface, and with the CLI.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Binaries tells where the programs under test are.
type Binaries struct {
	// Dir holds fairlead, the services and bookinfo.
	Dir string
	// Echo is the tests' application.
	Echo string
	// Envoy is the real one.
	Envoy string
}

// built lists the packages that make the binaries.
var built = []string{
	"fairlead.dev/services/ca/cmd/ca",
	"fairlead.dev/services/config-watcher/cmd/config-watcher",
	"fairlead.dev/services/installer/cmd/fairlead",
	"fairlead.dev/services/node-agent/cmd/node-agent",
	"fairlead.dev/services/xds-server/cmd/xds-server",
	"fairlead.dev/samples/bookinfo",
}

// Build provides the binaries: those in $BIN_DIR, else freshly built ones in dir. The echo application is always built. Envoy is $ENVOY, else .tools/envoy
// of the repository.
func Build(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Dir: os.Getenv("BIN_DIR"), Echo: filepath.Join(dir, "echo"), Envoy: os.Getenv("ENVOY")}
	if b.Envoy == "" {
		b.Envoy = filepath.Join(Tools(), "envoy")
	}
	var err error
	if b.Envoy, err = filepath.Abs(b.Envoy); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.Envoy); err != nil {
		return b, fmt.Errorf("no Envoy to test with: %w; run `make tools`, or set ENVOY to the path of a binary", err)
	}
	if err := GoBuild(ctx, b.Echo, "fairlead.dev/tests/e2e/echo"); err != nil {
		return b, err
	}
	if b.Dir != "" {
		if b.Dir, err = filepath.Abs(b.Dir); err != nil {
			return b, err
		}
		_, err := os.Stat(filepath.Join(b.Dir, "fairlead"))
		return b, err
	}
	b.Dir = filepath.Join(dir, "bin")
	if err := os.Mkdir(b.Dir, 0o755); err != nil {
		return b, err
	}
	return b, GoBuild(ctx, b.Dir+"/", built...)
}

// Tools is the directory of what `make tools` installs, .tools beside go.work in a directory above.
func Tools() string {
	for up := "."; len(up) < 64; up = filepath.Join("..", up) {
		if _, err := os.Stat(filepath.Join(up, "go.work")); err == nil {
			return filepath.Join(up, ".tools")
		}
	}
	return ".tools"
}

// GoBuild builds packages of the workspace.
func GoBuild(ctx context.Context, out string, packages ...string) error {
	output, err := exec.CommandContext(ctx, "go", append([]string{"build", "-o", out}, packages...)...).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("go build %v: %w", packages, err), errors.New(string(output)))
	}
	return nil
}
