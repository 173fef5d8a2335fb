package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

// The last good state of a file source is in a directory of its name: for each configured path a directory, in it a
// file of records for each file with objects, one record a line, and the file readMark. Directories and files are named
// by hashes of what they stand for. The state of paths that are no longer configured is removed after all configured
// ones have been read.

// savedSuffix ends the names of files with records.
const savedSuffix = ".jsonl"

// readMark is the file that marks a configured path as completely read.
const readMark = "read"

// root is the state of a configured path.
type root struct {
	// seen is true after this run has read it completely.
	seen bool
	// tried is true after the state of an earlier run was looked for because the path cannot be read; restored is when
	// that state was saved. searched is true after missing files were looked for.
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

// saveRoot marks a configured path as completely read.
func (s *Source) saveRoot(path string) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Put(filepath.Join(s.savedRoot(path), readMark), []byte(path+"\n"))
	}
}

// save writes a file's objects to the last good state. Objects of d are new; for the others, which are no longer valid
// in the file, the saved version stays.
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
		records, _, _, err := s.cfg.Saved.Records(s.cfg.Name, s.savedFile(e), s.cfg.Codec)
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

// removeSaved removes the saved state of a file that is gone.
func (s *Source) removeSaved(e entry) {
	if s.cfg.Saved != nil {
		s.cfg.Saved.Remove(s.savedFile(e))
		s.dropGrace(e)
	}
}

// wasFile reports whether a path was a file before, in this run or in an earlier one that saved its objects.
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

// prune removes the saved state of paths and files that do not exist any more. It is called once, after all have been
// read.
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

// restore fills a file that has not been seen with its saved objects.
func (s *Source) restore(st *fileState) error {
	if s.cfg.Saved == nil || !st.restored.IsZero() {
		return nil
	}
	records, lost, at, err := s.cfg.Saved.Records(s.cfg.Name, s.savedFile(st.entry), s.cfg.Codec)
	if err != nil {
		return err
	}
	s.fill(st, records, lost, at)
	return nil
}

func (s *Source) fill(st *fileState, records []record.Record, lost []hold.Hold, at time.Time) {
	st.restored = at
	for _, r := range records {
		o, err := s.cfg.Decode.Restore(r.File, r.Line, r.Content)
		if err != nil {
			s.cfg.Log.Error("saved object is not valid any more, it is left out", "source", s.cfg.Name, "object", r.Key.String(), "error", err)
			if h, ok := hold.OfKey(r.Key, fmt.Sprintf("%s:%d", r.File, r.Line)); ok {
				lost = append(lost, h)
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

// restoreRoot restores the files of a configured path that cannot be read and was not read in this run. It reports
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
		return false, nil //nolint:nilerr // it was never read, which the caller finds out itself
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

// restoreMissing restores the files that an earlier run has read in readable paths and that do not exist now. Their
// grace begins now, or began then.
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

// restoreFiles restores the saved files of a configured path, except those in except. It returns when the newest was
// saved.
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
		records, lost, saved, err := s.cfg.Saved.Records(s.cfg.Name, rel, s.cfg.Codec)
		if err != nil {
			return time.Time{}, err
		}
		if saved.After(newest) {
			newest = saved
		}
		// Without records nothing gives the file's name, so the saved file's name replaces it.
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
