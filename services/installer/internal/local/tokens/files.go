package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
)

// TTL is the lifetime of tokens, Kubernetes' default for projected ones.
const TTL = time.Hour

// refresh is the age at which tokens are replaced, 80 % of TTL as in a kubelet.
const refresh = TTL * 8 / 10

// Files keeps token files fresh.
type Files struct {
	issuer *Issuer
	clock  clock.Clock
	files  map[string]Subject
}

// NewFiles returns Files that keeps a token of each subject in the file that is its key.
func NewFiles(issuer *Issuer, c clock.Clock, files map[string]Subject) *Files {
	return &Files{issuer: issuer, clock: c, files: files}
}

// Write issues and writes all tokens, each file atomically with mode 0600.
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

// Run writes new tokens before the old ones expire, until ctx ends. It passes an error to report, and tries again a
// minute later.
func (f *Files) Run(ctx context.Context, report func(error)) error {
	for wait := refresh; clock.Sleep(ctx, f.clock, wait); {
		wait = refresh
		if err := f.Write(); err != nil {
			report(err)
			wait = time.Minute
		}
	}
	return nil
}
