// Package file keeps the ca's record in one file, for a ca of one process.
package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/record"
)

// period is the time between two readings. Only somebody who restores a backup changes the file beside the ca.
const period = 5 * time.Second

// Store is a record.Store.
type Store struct {
	path  string
	clock clock.Clock
	fs    fileio.FS
	saved notify.Notifier

	mu sync.Mutex
}

var _ record.Store = (*Store)(nil)

// New makes the Store of a file; its directory must exist.
func New(path string, by clock.Clock) *Store { return &Store{path: path, clock: clock.Or(by)} }

// Load reads the file.
func (s *Store) Load(context.Context) (record.Record, error) {
	text, err := fileio.ReadRegular(s.path, record.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return record.Record{}, record.ErrNone
	}
	if err != nil {
		return record.Record{}, fmt.Errorf("read the ca's record: %w", err)
	}
	return record.Record{Data: text, Version: version(text)}, nil
}

func version(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Save writes the file, if its content is that of the version.
func (s *Store) Save(ctx context.Context, data []byte, of string) (record.Record, error) {
	if len(data) > record.MaxBytes {
		return record.Record{}, fmt.Errorf("the ca's record has %d bytes, more than %d", len(data), record.MaxBytes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now, err := s.Load(ctx); {
	case err != nil && !errors.Is(err, record.ErrNone):
		return record.Record{}, err
	case now.Version != of:
		return record.Record{}, record.ErrChanged
	}
	if err := s.fs.Replace(s.path, data); err != nil {
		return record.Record{}, fmt.Errorf("write the ca's record to %s: %w", filepath.Base(s.path), err)
	}
	s.saved.Notify()
	return record.Record{Data: data, Version: version(data)}, nil
}

// Follow reads the file after each Save and every few seconds.
func (s *Store) Follow(ctx context.Context, f func(record.Record), problem func(error)) error {
	last := ""
	for {
		saved := s.saved.Changed()
		r, err := s.Load(ctx)
		switch {
		case errors.Is(err, record.ErrNone) && last == "":
			problem(nil)
		case errors.Is(err, record.ErrNone):
			problem(fmt.Errorf("%s, in which the ca keeps its state, was deleted; restore it, or the ca writes it again at its next step", s.path))
		case err != nil:
			problem(err)
		default:
			problem(nil)
			if r.Version != last {
				last = r.Version
				f(r)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-saved:
		case <-s.clock.After(period):
		}
	}
}

// Shared is false.
func (s *Store) Shared() bool { return false }
