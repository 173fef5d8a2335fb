package memory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

const (
	// writers is the number of files written at once. The file system joins their flushes, which is far quicker than
	// one after the other.
	writers = 16
	// probeEvery is how often Run probes the directory during an alarm.
	probeEvery = 5 * time.Second
	// probeApart is the least time between two probes, so that a client that keeps trying costs the disk little.
	probeApart = time.Second
	// minProbe and maxProbe bound the size of a probe. A probe is as large as the write that failed, so that a few free
	// bytes do not end the alarm.
	minProbe, maxProbe = 64 << 10, 16 << 20
	// probeName is the file that a probe writes.
	probeName = fileio.TempPrefix + "probe"
)

// alarm is the state after a write that failed because of the disk, such as no space. Meanwhile objects cannot be
// written, but can be deleted. It ends when a probe succeeds.
type alarm struct {
	err error
	// need is the size of the failed write in bytes.
	need int
	// last is the time of the last probe.
	last time.Time
	// repair undoes what a failed write has changed. It must succeed before anything else is written.
	repair func() error
}

// persist writes and deletes files; the caller holds s.writing. If it returns nil everything is on disk; if it fails
// everything is as before, in memory and on disk. If it cannot undo a failed write at once, nothing else is written
// before that is undone.
func (s *Store) persist(put []*Item, del []object.Key) error {
	if s.cfg.Dir == "" {
		return nil
	}
	if s.alarm != nil && (len(put) > 0 || s.alarm.repair != nil) {
		if s.probe(false); s.alarm != nil {
			s.update(func() { s.refused++ })
			return fmt.Errorf("%w: %w", ErrNotWritable, s.alarm.err)
		}
	}
	t, err := s.begin(put, del)
	if err == nil {
		err = s.commit(t)
	}
	if err == nil {
		s.saveBehind(t, del)
		if s.alarm != nil {
			s.probe(true) // a deletion may have made room
		}
		return nil
	}
	s.update(func() { s.refused++ })
	if fileio.Exhausted(err) || t.undone != nil {
		s.raiseAlarm(err, t)
	}
	return fmt.Errorf("%w: %w", ErrNotWritable, err)
}

// raiseAlarm sets the alarm.
func (s *Store) raiseAlarm(err error, t *transaction) {
	a := &alarm{err: err, last: s.cfg.Clock.Now(), repair: t.undone, need: minProbe}
	for _, f := range t.put {
		a.need += len(f.content)
	}
	a.need = min(a.need, maxProbe)
	s.update(func() { s.alarm = a })
	s.cfg.Log.Error("store takes no writes until its directory can be written again; objects can be deleted", "dir", s.cfg.Dir, "error", err)
}

// probe writes to the directory and ends the alarm if that succeeds, at most every probeApart unless atOnce is true;
// the caller holds s.writing.
func (s *Store) probe(atOnce bool) {
	now := s.cfg.Clock.Now()
	if since := now.Sub(s.alarm.last); !atOnce && since >= 0 && since < probeApart {
		return
	}
	s.alarm.last = now
	if s.alarm.repair != nil {
		if err := s.alarm.repair(); err != nil {
			return
		}
		s.alarm.repair = nil
	}
	path := filepath.Join(s.cfg.Dir, probeName)
	err := s.cfg.FS.Replace(path, make([]byte, s.alarm.need))
	if err = errors.Join(err, s.cfg.FS.Remove(path)); err != nil {
		return
	}
	s.update(func() { s.alarm = nil })
	s.cfg.Log.Info("store takes writes again", "dir", s.cfg.Dir)
}

// file is one object's file in a transaction.
type file struct {
	rel     string
	content []byte
	// temp is the path of the prepared file, relative like rel.
	temp string
	// aside is the second name of a damaged file that was at the path.
	aside string
}

// transaction is a write of several files, which takes effect as a whole or not at all.
type transaction struct {
	put []*file
	del []string
	// undone is set if the transaction failed and could not be undone; it tries again to undo it.
	undone func() error
}

// begin prepares the files of a write. If it fails nothing has changed.
func (s *Store) begin(put []*Item, del []object.Key) (*transaction, error) {
	t := &transaction{}
	for _, it := range put {
		content, err := s.cfg.Codec.Encode(record.Record{Key: it.Key, Content: it.Manifest})
		if err != nil {
			return t, err
		}
		t.put = append(t.put, &file{rel: relPath(it.Key), content: content})
	}
	for _, k := range del {
		t.del = append(t.del, relPath(k))
	}
	return t, s.stage(t)
}

// stage writes the temporary files of a transaction.
func (s *Store) stage(t *transaction) error {
	var files errgroup.Group
	files.SetLimit(writers)
	var failed error
	for _, f := range t.put {
		dir := filepath.Join(s.cfg.Dir, filepath.Dir(f.rel))
		if failed = s.cfg.FS.MakeDir(dir); failed != nil {
			break
		}
		files.Go(func() error {
			temp, err := s.cfg.FS.Prepare(dir, f.content)
			if err == nil {
				f.temp = filepath.Join(filepath.Dir(f.rel), filepath.Base(temp))
			}
			return err
		})
	}
	if failed = errors.Join(failed, files.Wait()); failed != nil {
		return errors.Join(failed, s.discard(t))
	}
	return nil
}

// discard removes temporary files. The next start removes those that cannot be removed now.
func (s *Store) discard(t *transaction) error {
	var errs []error
	for _, f := range t.put {
		if f.temp != "" {
			if err := os.Remove(filepath.Join(s.cfg.Dir, f.temp)); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// commit renames the temporary files and deletes. If it fails it undoes what it has changed.
func (s *Store) commit(t *transaction) error {
	journal := filepath.Join(s.cfg.Dir, journalName)
	journalled := len(t.put)+len(t.del) > 1
	if journalled {
		content, err := encodeJournal(t)
		if err == nil {
			err = s.cfg.FS.Replace(journal, content)
		}
		if err != nil {
			if removed := s.cfg.FS.Remove(journal); removed != nil {
				// The journal may be complete, and must not be finished after a restart.
				t.undone = func() error { return errors.Join(s.cfg.FS.Remove(journal), s.discard(t)) }
				return errors.Join(err, removed)
			}
			return errors.Join(err, s.discard(t))
		}
	}
	touched, err := s.move(t)
	if err == nil && journalled {
		err = s.cfg.FS.Remove(journal)
	}
	if err == nil {
		return nil
	}
	if undo := s.undo(touched); undo != nil {
		t.undone = func() error {
			if err := s.undo(touched); err != nil {
				return err
			}
			return s.discard(t)
		}
		return errors.Join(err, fmt.Errorf("and it could not be undone yet: %w", undo))
	}
	return errors.Join(err, s.discard(t))
}

// move renames and deletes, and returns the files that it may have changed.
func (s *Store) move(t *transaction) (touched []*file, err error) {
	dirs := map[string]struct{}{}
	for _, f := range t.put {
		path := filepath.Join(s.cfg.Dir, f.rel)
		if err := s.keepAside(f); err != nil {
			return touched, err
		}
		touched = append(touched, f)
		if err := s.cfg.FS.Rename(filepath.Join(s.cfg.Dir, f.temp), path); err != nil {
			return touched[:len(touched)-1], err
		}
		dirs[filepath.Dir(path)] = struct{}{}
	}
	for dir := range dirs {
		if err := s.cfg.FS.SyncDir(dir); err != nil {
			return touched, err
		}
	}
	for _, rel := range t.del {
		f := &file{rel: rel}
		if err := s.keepAside(f); err != nil {
			return touched, err
		}
		touched = append(touched, f)
		if err := s.cfg.FS.Remove(filepath.Join(s.cfg.Dir, rel)); err != nil {
			return touched, err
		}
	}
	return touched, nil
}

// keepAside gives a damaged file a second name, so that its content can still be examined after it was replaced.
func (s *Store) keepAside(f *file) error {
	if _, damaged := s.damaged[f.rel]; !damaged {
		return nil
	}
	name := object.Cut(filepath.Base(f.rel), 200)
	aside := filepath.Join(s.cfg.Dir, damagedDir, fmt.Sprintf("%s-%s-%d", shortHash(f.rel), name, s.cfg.Clock.Now().UnixNano()))
	if err := s.cfg.FS.MakeDir(filepath.Dir(aside)); err != nil {
		return err
	}
	if err := os.Link(filepath.Join(s.cfg.Dir, f.rel), aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keep the damaged file: %w", err)
	}
	f.aside = aside
	return s.cfg.FS.SyncDir(filepath.Dir(aside))
}

// undo restores files to what is in memory, or to the damaged files that were there. It is itself a transaction: a kill
// leaves the write whole or undone.
func (s *Store) undo(touched []*file) error {
	back := &transaction{}
	var errs []error
	for _, f := range touched {
		if f.aside != "" {
			errs = append(errs, os.Rename(f.aside, filepath.Join(s.cfg.Dir, f.rel)))
			continue
		}
		if old := s.byPath(f.rel); old != nil {
			content, err := s.cfg.Codec.Encode(record.Record{Key: old.Key, Content: old.Manifest})
			errs = append(errs, err)
			back.put = append(back.put, &file{rel: f.rel, content: content})
		} else {
			back.del = append(back.del, f.rel)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := s.stage(back); err != nil {
		return err
	}
	content, err := encodeJournal(back)
	if err != nil {
		return err
	}
	journal := filepath.Join(s.cfg.Dir, journalName)
	if err := s.cfg.FS.Replace(journal, content); err != nil {
		return errors.Join(err, s.discard(back))
	}
	if _, err := s.move(back); err != nil {
		return errors.Join(err, s.discard(back))
	}
	return s.cfg.FS.Remove(journal)
}

// byPath returns the item whose file has a path; nil if there is none.
func (s *Store) byPath(rel string) *Item {
	for k, it := range s.items {
		if relPath(k) == rel {
			return it
		}
	}
	return nil
}

// saveBehind copies a write to the last good state.
func (s *Store) saveBehind(t *transaction, del []object.Key) {
	if s.cfg.Saved == nil {
		return
	}
	for _, f := range t.put {
		s.cfg.Saved.Put(s.savedPath(f.rel), f.content)
	}
	for _, k := range del {
		s.cfg.Saved.Remove(s.savedPath(relPath(k)))
	}
}
