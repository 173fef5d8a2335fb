package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"fairlead.dev/tests/internal/binaries"
)

// Binaries are the programs of a fleet.
type Binaries struct {
	binaries.Set
	// Echo is the application.
	Echo string
}

// FindBinaries provides them; what has to be built is put into dir. The application is scenario-echo in $BIN_DIR, if it
// is there.
func FindBinaries(ctx context.Context, dir string) (*Binaries, error) {
	set, err := binaries.Find(ctx, dir)
	if err != nil {
		return nil, err
	}
	b := &Binaries{Set: set}
	b.Echo, err = set.Provide(ctx, dir, application, "fairlead.dev/tests/scenarios/echo")
	return b, err
}

// application is its name among the programs.
const application = "scenario-echo"

// provide puts the programs where other users than root can run them.
func (w *World) provide(ctx context.Context) error {
	w.files = w.options.Binaries
	if w.files == nil {
		var err error
		if w.files, err = FindBinaries(ctx, w.options.Dir); err != nil {
			return err
		}
	}
	return errors.Join(
		publish(w.files.Path("node-agent"), w.path("node-agent")), publish(w.files.Envoy, w.path("envoy")),
	)
}

// publish links or copies a program.
func publish(from, to string) error {
	if resolved, err := filepath.EvalSymlinks(from); err == nil {
		from = resolved
	}
	info, err := os.Stat(from)
	if err != nil {
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
