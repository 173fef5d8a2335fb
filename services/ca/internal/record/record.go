// Package record keeps the one record that a ca must find again after a restart, and that its replicas have in common.
// It is replaced as a whole, by whoever has read its last version. File keeps it in a file, for a ca of one process;
// package secret in a Secret of Kubernetes, for any number of replicas.
package record

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// maxBytes bounds a record. It has certificates and a signer file; a Secret holds 1 MiB with all of its metadata.
const maxBytes = 768 << 10

var (
	// ErrNone says that there is no record yet.
	ErrNone = errors.New("there is no record yet")
	// ErrChanged says that there is another record than the one that was read, as after another replica wrote, or after
	// a backup was restored. The caller reads it and decides anew.
	ErrChanged = errors.New("the record has been changed by somebody else")
)

// Record is one version of the record.
type Record struct {
	Data []byte
	// Version stands for Data; two records with the same Data have the same.
	Version string
	// Order tells which of two records of one Store is the newer one: the one with the greater Order, whatever the
	// order in which their readers come to look at them.
	Order uint64
}

// Store keeps one record. It is safe for concurrent use.
type Store interface {
	// Load reads the record, or returns ErrNone. It asks whoever keeps it, and never a cache.
	Load(ctx context.Context) (Record, error)
	// Save replaces the record of that version, or makes the first one if version is empty. It returns once the record
	// outlives a crash. After ErrChanged nothing is changed; after other errors it may be, and Load tells.
	Save(ctx context.Context, data []byte, version string) (Record, error)
	// Follow calls f with the record at once, if there is one, and whenever it has changed, by Save too, until ctx
	// ends. After each reading it calls problem with what keeps it from reading, or with nil. Both may use the Store.
	Follow(ctx context.Context, f func(Record), problem func(error)) error
}

// Version is that of a record with such data.
func Version(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// CheckSize returns an error if data is too large for a record.
func CheckSize(data []byte) error {
	if len(data) > maxBytes {
		return fmt.Errorf("the ca's record has %d bytes, more than %d", len(data), maxBytes)
	}
	return nil
}

// Reader hands the readings of a Follow on: each record once, and each problem.
type Reader struct {
	Store Store
	// Where names the record in errors.
	Where   string
	F       func(Record)
	Problem func(error)

	last string
}

// Read reads the record once.
func (r *Reader) Read(ctx context.Context) {
	now, err := r.Store.Load(ctx)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrNone) && r.last == "":
		r.Problem(nil)
	case errors.Is(err, ErrNone):
		r.Problem(fmt.Errorf("%s, in which the ca keeps its state, was deleted; restore it from a backup", r.Where))
	case err != nil:
		r.Problem(err)
	default:
		r.Problem(nil)
		if now.Version != r.last {
			r.last = now.Version
			r.F(now)
		}
	}
}
