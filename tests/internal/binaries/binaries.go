// Package binaries provides the programs under test.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Set tells where the programs under test are.
type Set struct {
	// Dir holds fairlead, the services and bookinfo.
	Dir string
	// Envoy is the real one.
	Envoy string
}

// Path is that of one of the programs in Dir.
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// built lists the packages that make them.
var built = []string{
	"fairlead.dev/services/ca/cmd/ca",
	"fairlead.dev/services/config-watcher/cmd/config-watcher",
	"fairlead.dev/services/installer/cmd/fairlead",
	"fairlead.dev/services/node-agent/cmd/node-agent",
	"fairlead.dev/services/xds-server/cmd/xds-server",
	"fairlead.dev/samples/bookinfo",
}

// Find provides the programs: those in $BIN_DIR, else freshly built ones in a new directory in dir. Envoy is $ENVOY,
// else .tools/envoy of the repository.
func Find(ctx context.Context, dir string) (Set, error) {
	s := Set{Dir: os.Getenv("BIN_DIR"), Envoy: os.Getenv("ENVOY")}
	if s.Envoy == "" {
		s.Envoy = filepath.Join(Tools(), "envoy")
	}
	var err error
	if s.Envoy, err = filepath.Abs(s.Envoy); err != nil {
		return s, err
	}
	if _, err := os.Stat(s.Envoy); err != nil {
		return s, fmt.Errorf("no Envoy to test with: %w; run `make tools`, or set ENVOY to the path of a binary", err)
	}
	if s.Dir != "" {
		if s.Dir, err = filepath.Abs(s.Dir); err != nil {
			return s, err
		}
		_, err := os.Stat(s.Path("fairlead"))
		return s, err
	}
	s.Dir = filepath.Join(dir, "bin")
	if err := os.Mkdir(s.Dir, 0o755); err != nil {
		return s, err
	}
	return s, Build(ctx, s.Dir+"/", built...)
}

// Provide returns the path of another program that tests need: the one in Dir if it is there, else a fresh build in
// dir.
func (s Set) Provide(ctx context.Context, dir, name, pkg string) (string, error) {
	if path := s.Path(name); exists(path) {
		return path, nil
	}
	path := filepath.Join(dir, name)
	return path, Build(ctx, path, pkg)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Publish links or copies a program to a place where users other than the tests' own can run it, and replaces what is
// there.
func Publish(from, to string) error {
	if resolved, err := filepath.EvalSymlinks(from); err == nil {
		from = resolved
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if info.Mode().Perm()&0o005 == 0o005 && os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// Tools is the directory of what `make tools` installs, .tools beside go.work in a directory above.
func Tools() string {
	for up := "."; len(up) < 64; up = filepath.Join("..", up) {
		if exists(filepath.Join(up, "go.work")) {
			return filepath.Join(up, ".tools")
		}
	}
	return ".tools"
}

// Build builds packages of the workspace, without git's stamp: git refuses a checkout that another user owns.
func Build(ctx context.Context, out string, packages ...string) error {
	output, err := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", out}, packages...)...).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("go build %v: %w", packages, err), errors.New(string(output)))
	}
	return nil
}
