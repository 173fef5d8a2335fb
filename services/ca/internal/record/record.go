// Package record is the seam to where a ca writes down what it must find again, and what its replicas have in common:
// one record, which is replaced as a whole by whoever has read its last version. Package file keeps it on disk, for a
// ca of one process; package secret in a Secret of Kubernetes, for any number of replicas.
package record

import (
	"context"
	"errors"
)

// MaxBytes bounds a record: a Secret holds 1 MiB with all of its metadata.
const MaxBytes = 768 << 10

var (
	// ErrNone says that there is no record yet.
	ErrNone = errors.New("there is no record yet")
	// ErrChanged says that somebody else has replaced the record since it was read. The caller reads it again and
	// decides anew.
	ErrChanged = errors.New("the record has been changed by somebody else")
)

// Record is one version of the record.
type Record struct {
	Data []byte
	// Version stands for Data; its form is the Store's.
	Version string
}

// Store keeps one record. It is safe for concurrent use.
type Store interface {
	// Load reads the record, or returns ErrNone.
	Load(ctx context.Context) (Record, error)
	// Save replaces the record of that version, or makes the first one if version is empty. It returns once the record
	// outlives a crash. After ErrChanged nothing is changed; after other errors it may be, and Load tells.
	Save(ctx context.Context, data []byte, version string) (Record, error)
	// Follow calls f with the record at once, if there is one, and whenever it may have changed, until ctx ends. It
	// reports by problem what keeps it from reading, and nil when it reads again.
	Follow(ctx context.Context, f func(Record), problem func(error)) error
	// Shared is true if other replicas of the ca have the same record.
	Shared() bool
}
