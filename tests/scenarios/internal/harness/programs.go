package harness

import (
	"context"
	"errors"

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
func (h *Harness) provide(ctx context.Context) error {
	h.files = h.options.Binaries
	if h.files == nil {
		var err error
		if h.files, err = FindBinaries(ctx, h.options.Dir); err != nil {
			return err
		}
	}
	return errors.Join(
		binaries.Publish(h.files.Path("node-agent"), h.path("node-agent")), binaries.Publish(h.files.Envoy, h.path("envoy")),
	)
}
