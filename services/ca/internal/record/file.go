package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/private"
)

const (
	// period is the time between two readings of Follow. Beside the ca only the restoring of a backup changes the file.
	period = 5 * time.Second
	// lockTimeout bounds the wait for another process that writes.
	lockTimeout = 10 * time.Second
	// lockSuffix and the name of the file are that of the file that a writer locks.
	lockSuffix = ".lock"
)

// File is the Store of a file.
type File struct {
	path  string
	clock clock.Clock
	fs    fileio.FS
	saved notify.Notifier

	mu    sync.Mutex
	order uint64
}

var _ Store = (*File)(nil)

// NewFile makes the File of a path; its directory must exist.
func NewFile(path string, by clock.Clock) *File { return NewFileOn(fileio.FS{}, path, by) }

// NewFileOn is NewFile on another file system than the operating system's.
func NewFileOn(fs fileio.FS, path string, by clock.Clock) *File {
	return &File{path: path, clock: clock.Or(by), fs: fs}
}

// Load implements Store.
func (f *File) Load(context.Context) (Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.load()
}

// load is Load for a caller that holds the mutex.
func (f *File) load() (Record, error) {
	text, err := fileio.ReadRegular(f.path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNone
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the ca's record: %w", err)
	}
	return f.record(text), nil
}

func (f *File) record(text []byte) Record {
	f.order++
	return Record{Data: text, Version: Version(text), Order: f.order}
}

// Save implements Store.
func (f *File) Save(ctx context.Context, data []byte, of string) (Record, error) {
	if err := CheckSize(data); err != nil {
		return Record{}, err
	}
	unlock, err := private.Lock(ctx, f.path+lockSuffix, lockTimeout)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch now, err := f.load(); {
	case err != nil && !errors.Is(err, ErrNone):
		return Record{}, err
	case now.Version != of:
		return Record{}, ErrChanged
	}
	if err := f.fs.Replace(f.path, data); err != nil {
		return Record{}, fmt.Errorf("write the ca's record: %w", err)
	}
	f.saved.Notify()
	return f.record(data), nil
}

// Follow implements Store: it reads the file after each Save, and every period.
func (f *File) Follow(ctx context.Context, to func(Record), problem func(error)) error {
	reader := &Reader{Store: f, Where: f.path, F: to, Problem: problem}
	for {
		saved := f.saved.Changed()
		reader.Read(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-saved:
		case <-f.clock.After(period):
		}
	}
}
