package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
)

// TTL of issued tokens; Kubernetes' default for projected ones.
const TTL = time.Hour

// refresh is when tokens are written anew: at 80 % of their life, as kubelet does.
const refresh = TTL * 8 / 10

// Files keeps token files fresh.
type Files struct {
	issuer *Issuer
	clock  clock.Clock
	files  map[string]Subject
}

// NewFiles keeps a token of each subject in the file that is its key.
func NewFiles(issuer *Issuer, c clock.Clock, files map[string]Subject) *Files {
	return &Files{issuer: issuer, clock: c, files: files}
}

// Write issues all tokens and writes them, 0600, each atomically.
func (f *Files) Write() error {
	var names []string
	for name := range f.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		token, err := f.issuer.Issue(f.files[name], f.clock.Now(), TTL)
		if err != nil {
			return err
		}
		if err := fileio.Replace(name, []byte(token)); err != nil {
			return fmt.Errorf("token file: %w", err)
		}
	}
	return nil
}

// Run writes the tokens again before they expire, until ctx ends. A failed write is tried again every minute; the error of the last one is
// handed to report.
func (f *Files) Run(ctx context.Context, report func(error)) error {
	wait := refresh
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.clock.After(wait):
		}
		wait = refresh
		if err := f.Write(); err != nil {
			report(err)
			wait = time.Minute
		}
	}
}
