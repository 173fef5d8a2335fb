package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

// Records reads a file of a source's records, one a line, and when it was saved; there are none without the file. It
// logs damaged records, and returns a hold for each that may have been a security object. An error means a record whose
// key was not given.
func (d *Dir) Records(source, rel string, codec record.Codec) (records []record.Record, lost []hold.Hold, at time.Time, err error) {
	content, at, err := d.Get(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, time.Time{}, nil
	}
	if err != nil {
		d.cfg.Log.Error("saved state cannot be read, it is left out", "source", source, "file", rel, "error", err)
		return nil, nil, time.Time{}, nil
	}
	for i, line := range bytes.Split(content, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		r, err := codec.Decode(line)
		switch {
		case errors.Is(err, record.ErrLocked):
			return nil, nil, time.Time{}, fmt.Errorf(
				"saved state %s, line %d: %w; give the key with --store-encryption-key-file, or remove the file to go without what it holds", rel, i+1,
				err)
		case err != nil:
			d.cfg.Log.Error("saved object is damaged, it is left out", "source", source, "file", rel, "line", i+1, "object", r.Key.String(),
				"error", err)
			// Nothing in a damaged line is certain, not even its namespace.
			lost = append(lost, hold.OfDamaged(fmt.Sprintf("%s:%d", rel, i+1), line)...)
		default:
			records = append(records, r)
		}
	}
	return records, lost, at, nil
}
