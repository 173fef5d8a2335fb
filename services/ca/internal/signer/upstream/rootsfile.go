package upstream

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/lists"
)

// RootsFile sets the roots of a Trust from a file of PEM certificates, which may be that of a ConfigMap.
type RootsFile struct {
	Path     string
	Trust    *Trust
	Problems *Problems
	Clock    clock.Clock
	Log      *slog.Logger
}

const (
	maxRootsFile = 1 << 20
	// readEvery is how often the file is read without a notification, and readSoon while it is missing or broken.
	readEvery, readSoon = 30 * time.Second, time.Second
)

// Run follows the file until ctx ends. While it is missing or broken, the last roots stay.
func (f RootsFile) Run(ctx context.Context) {
	filewatch.Follower{
		Files: func() []string { return []string{f.Path} }, Clock: clock.Or(f.Clock), Log: f.Log,
		Read: func() time.Duration {
			err := f.read()
			if f.Problems.Set("rootsFile", err) && err != nil {
				f.Log.Warn("the signer's roots cannot be read; the last ones stay", "error", err)
			}
			if err != nil {
				return readSoon
			}
			return readEvery
		},
	}.Run(ctx)
}

func (f RootsFile) read() error {
	raw, err := fileio.ReadRegular(f.Path, maxRootsFile)
	if err != nil {
		return fmt.Errorf("rootsFile: %w", err)
	}
	roots, err := Roots(string(raw))
	if err != nil {
		return fmt.Errorf("rootsFile: %s: %w", f.Path, err)
	}
	if err := f.Trust.SetRoots(roots); err != nil {
		return fmt.Errorf("rootsFile: %s: %w", f.Path, err)
	}
	return nil
}

// Unknown returns the fingerprints of what a service calls its roots and is not trusted, for an error, if the chain
// does not verify with the roots that are. It returns none if all is well.
func (t *Trust) Unknown(chain, claimed []*x509.Certificate) []string {
	current, _ := t.Authorities()
	if current == nil {
		return nil
	}
	unknown := lists.Filter(claimed, func(c *x509.Certificate) bool { return !slices.ContainsFunc(current.Roots, c.Equal) })
	if len(unknown) == 0 {
		return nil
	}
	if _, err := pathOf(chain, current.Roots, t.clock.Now()); err == nil {
		return nil
	}
	return lists.Map(unknown, Fingerprint)
}

// Fingerprint is the SHA-256 of a certificate in hexadecimal, as openssl and step print it.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}
