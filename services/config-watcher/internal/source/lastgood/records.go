package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/object"
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

// PutRecords sets a file to the records of objects, which encode makes, in the order of their keys; without objects it
// removes the file. It logs the objects that cannot be encoded.
func (d *Dir) PutRecords(rel string, objects []*object.Object, encode func(*object.Object) ([]byte, error)) {
	slices.SortFunc(objects, func(a, b *object.Object) int { return a.Key.Compare(b.Key) })
	var text bytes.Buffer
	for _, o := range objects {
		line, err := encode(o)
		if err != nil {
			d.cfg.Log.Error("object cannot be saved, its last good version will not outlive a restart", "object", o.Key.String(), "error", err)
			continue
		}
		text.Write(line)
	}
	if text.Len() == 0 {
		d.Remove(rel)
	} else {
		d.Put(rel, text.Bytes())
	}
}
