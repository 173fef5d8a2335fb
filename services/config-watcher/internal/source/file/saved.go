package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// The last good state of a file source is, below its name, a directory for each configured path with a file for each
// file there that has objects, one record a line, and one more file that says that the path was read. Directories and
// files are named by hashes of what they stand for: a path that is not configured any more is not looked for, and what
// was saved of it is removed once everything that is configured has been read.

// savedSuffix ends the names of files with records.
const savedSuffix = ".jsonl"

// readMark is the file that says that a configured path was read whole.
const readMark = "read"

// root is a configured path.
type root struct {
	// seen is true once it has been read whole in this run.
	seen bool
	// tried is true once an earlier run's state has been looked for because the path could not be read, restored when
	// that was saved; searched is true once it has been looked for files that are missing.
	tried    bool
	searched bool
	restored time.Time
}

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func (s *Source) savedRoot(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return filepath.Join(s.cfg.Name, shortHash(path))
}

func (s *Source) savedFile(e entry) string {
	return filepath.Join(s.savedRoot(e.root), shortHash(e.name)+savedSuffix)
}

// saveRoot notes that a configured path was read whole.
func (s *Source) saveRoot(path string) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Put(filepath.Join(s.savedRoot(path), readMark), []byte(path+"\n"))
	}
}

// save writes a file's objects behind. Those of d are new; of the others, which are not valid any more in the file, the
// saved version stays.
func (s *Source) save(e entry, next, d Decoded) {
	if s.cfg.Saved == nil {
		return
	}
	var text bytes.Buffer
	add := func(r record.Record) {
		line, err := s.cfg.Codec.Encode(r)
		if err != nil {
			s.cfg.Log.Error("object cannot be saved, its last good version will not outlive a restart", "object", r.Key.String(), "error", err)
			return
		}
		text.Write(line)
	}
	taken := map[*object.Object]bool{}
	for _, o := range next.Objects {
		taken[o] = true
	}
	fresh := map[object.Key]bool{}
	for i, o := range d.Objects {
		if !taken[o] {
			continue
		}
		fresh[o.Key] = true
		add(record.Record{Key: o.Key, File: e.name, Line: manifest.LineOf(o.Location), Content: d.Contents[i]})
	}
	kept := map[object.Key]bool{}
	for _, o := range next.Objects {
		if !fresh[o.Key] && !o.Held {
			kept[o.Key] = true
		}
	}
	if len(kept) > 0 {
		records, _, _, err := s.saved(s.savedFile(e))
		if err != nil {
			s.cfg.Log.Error("last good versions cannot be saved again", "file", e.path, "error", err)
		}
		for _, r := range records {
			if kept[r.Key] {
				add(r)
			}
		}
	}
	if text.Len() == 0 {
		s.cfg.Saved.Remove(s.savedFile(e))
		return
	}
	s.cfg.Saved.Put(s.savedFile(e), text.Bytes())
}

// forget removes what was saved of a file that is gone.
func (s *Source) forget(e entry) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Remove(s.savedFile(e))
		s.dropGrace(e)
	}
}

// wasFile tells whether a path was a file before, in this run or in an earlier one that saved its objects.
func (s *Source) wasFile(e entry) bool {
	if s.files[e.path] != nil {
		return true
	}
	if s.cfg.Saved == nil {
		return false
	}
	_, _, err := s.cfg.Saved.Get(s.savedFile(e))
	return err == nil
}

// prune removes what was saved of other paths and files than there are, once all of these are known.
func (s *Source) prune() {
	if s.cfg.Saved == nil {
		return
	}
	wanted := map[string]bool{}
	for path := range s.roots {
		wanted[filepath.Join(s.savedRoot(path), readMark)] = true
	}
	for _, st := range s.files {
		wanted[s.savedFile(st.entry)] = true
		if st.grace != nil {
			wanted[s.graceFile(st.entry)] = true
		}
	}
	all, err := s.cfg.Saved.List(s.cfg.Name)
	if err != nil {
		s.cfg.Log.Warn("saved states cannot be listed, old ones stay", "source", s.cfg.Name, "error", err)
		return
	}
	for _, rel := range all {
		if !wanted[rel] {
			s.cfg.Saved.Remove(rel)
		}
	}
}

// saved reads the records of a saved file. Of those that are damaged it tells a problem each, and a hold for those that
// may have been security objects; only a record whose key was not given is an error.
func (s *Source) saved(rel string) (records []record.Record, lost []validate.Hold, at time.Time, err error) {
	content, at, err := s.cfg.Saved.Get(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, time.Time{}, nil
	}
	if err != nil {
		s.cfg.Log.Error("saved state cannot be read, it is left out", "source", s.cfg.Name, "file", rel, "error", err)
		return nil, nil, time.Time{}, nil
	}
	for i, line := range bytes.Split(content, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		r, err := s.cfg.Codec.Decode(line)
		switch {
		case errors.Is(err, record.ErrLocked):
			return nil, nil, time.Time{}, fmt.Errorf("saved state %s, line %d: %w; give the key with --store-encryption-key-file, or remove the file to go without what it holds", rel, i+1, err)
		case err != nil:
			s.cfg.Log.Error("saved object is damaged, it is left out", "source", s.cfg.Name, "file", rel, "line", i+1, "object", r.Key.String(), "error", err)
			// Nothing that a damaged line says is certain, not even its namespace.
			if hold, ok := validate.HoldDamaged(fmt.Sprintf("%s:%d", rel, i+1), line); ok {
				lost = append(lost, hold)
			}
		default:
			records = append(records, r)
		}
	}
	return records, lost, at, nil
}

// restore fills a file that has not been seen with what an earlier run has saved of it.
func (s *Source) restore(st *fileState) error {
	if s.cfg.Saved == nil || !st.restored.IsZero() {
		return nil
	}
	records, lost, at, err := s.saved(s.savedFile(st.entry))
	if err != nil {
		return err
	}
	s.fill(st, records, lost, at)
	return nil
}

func (s *Source) fill(st *fileState, records []record.Record, lost []validate.Hold, at time.Time) {
	st.restored = at
	for _, r := range records {
		o, err := s.cfg.Decode.Restore(r.File, r.Line, r.Content)
		if err != nil {
			s.cfg.Log.Error("saved object is not valid any more, it is left out", "source", s.cfg.Name, "object", r.Key.String(), "error", err)
			if hold, ok := validate.HoldKey(r.Key, fmt.Sprintf("%s:%d", r.File, r.Line)); ok {
				lost = append(lost, hold)
			}
			continue
		}
		o.Source = s.cfg.Name
		st.objects = append(st.objects, o)
	}
	for _, h := range lost {
		h.Object.Source = s.cfg.Name
		st.objects = append(st.objects, h.Object)
		st.problems = append(st.problems, h.Problem())
	}
}

// restoreRoot fills in the files of a configured path that cannot be read and was not read in this run. It reports
// whether there were any.
func (s *Source) restoreRoot(path string) (bool, error) {
	r := s.roots[path]
	if s.cfg.Saved == nil || r.seen || r.tried {
		return false, nil
	}
	r.tried = true
	dir := s.savedRoot(path)
	_, at, err := s.cfg.Saved.Get(filepath.Join(dir, readMark))
	if err != nil {
		return false, nil //nolint:nilerr // it was never read: that is what the caller finds
	}
	newest, err := s.restoreFiles(path, nil)
	if err != nil {
		return false, err
	}
	r.restored = at
	if newest.After(at) {
		r.restored = newest
	}
	return true, nil
}

// restoreMissing fills in the files that an earlier run has read in the configured paths that can be read, and that are
// not there: their grace begins now, or has begun then.
func (s *Source) restoreMissing(found listing) error {
	for path, r := range s.roots {
		if s.cfg.Saved == nil || r.searched || found.failed[path] != nil {
			continue
		}
		r.searched = true
		there := map[string]bool{}
		for _, f := range found.files {
			there[s.savedFile(f)] = true
		}
		if _, err := s.restoreFiles(path, there); err != nil {
			return err
		}
	}
	return nil
}

// restoreFiles fills in what an earlier run has saved of the files of a configured path, but for those whose saved
// state is in except. It returns when the newest was saved.
func (s *Source) restoreFiles(path string, except map[string]bool) (newest time.Time, err error) {
	all, err := s.cfg.Saved.List(s.savedRoot(path))
	if err != nil {
		s.cfg.Log.Error("saved state cannot be listed, it is left out", "source", s.cfg.Name, "path", path, "error", err)
		return time.Time{}, nil
	}
	for _, rel := range all {
		if !strings.HasSuffix(rel, savedSuffix) || except[rel] {
			continue
		}
		records, lost, saved, err := s.saved(rel)
		if err != nil {
			return time.Time{}, err
		}
		if saved.After(newest) {
			newest = saved
		}
		// Where nothing tells the file's name any more, its record's own stands for it.
		e := entry{path: filepath.Join(path, filepath.Base(rel)), name: filepath.Base(rel), root: path}
		if len(records) > 0 {
			e.name = records[0].File
			e.path = filepath.Join(path, strings.TrimPrefix(e.name, filepath.Base(filepath.Clean(path))))
		}
		if s.files[e.path] == nil {
			st := &fileState{entry: e}
			s.fill(st, records, lost, saved)
			s.files[e.path] = st
		}
	}
	return newest, nil
}
