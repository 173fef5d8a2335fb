// Package record keeps the one record that a ca must find again after a restart, in a file. It is replaced as a whole,
// by whoever has read its last version.
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"fairlead.dev/pkg/fileio"
)

// maxBytes bounds a record. It has certificates and a signer file.
const maxBytes = 768 << 10

var (
	// ErrNone says that there is no record yet.
	ErrNone = errors.New("there is no record yet")
	// ErrChanged says that the file has another record than the one that was read, as after a backup was restored.
	ErrChanged = errors.New("the record has been changed by somebody else")
)

// Record is one version of the record.
type Record struct {
	Data []byte
	// Version stands for Data.
	Version string
}

// File keeps the record. It is safe for concurrent use by one process.
type File struct {
	path string
	fs   fileio.FS

	mu sync.Mutex
}

// NewFile makes the File of a path; its directory must exist.
func NewFile(path string) *File { return &File{path: path} }

// Load reads the record, or returns ErrNone.
func (f *File) Load() (Record, error) {
	text, err := fileio.ReadRegular(f.path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNone
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the ca's record: %w", err)
	}
	return Record{Data: text, Version: version(text)}, nil
}

func version(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Save replaces the record of that version, or makes the first one if version is empty. It returns once the record
// outlives a crash. After ErrChanged nothing is changed; after other errors it may be, and Load tells.
func (f *File) Save(data []byte, of string) (Record, error) {
	if len(data) > maxBytes {
		return Record{}, fmt.Errorf("the ca's record has %d bytes, more than %d", len(data), maxBytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch now, err := f.Load(); {
	case err != nil && !errors.Is(err, ErrNone):
		return Record{}, err
	case now.Version != of:
		return Record{}, ErrChanged
	}
	if err := f.fs.Replace(f.path, data); err != nil {
		return Record{}, fmt.Errorf("write the ca's record: %w", err)
	}
	return Record{Data: data, Version: version(data)}, nil
}
