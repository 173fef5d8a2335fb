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
	// writers write files at once: the file system joins their flushes, which is far quicker than one after the other.
	writers = 16
	// probeEvery is how often a store with an alarm looks whether its directory can be written again, without being
	// asked.
	probeEvery = 5 * time.Second
	// probeApart is the least time between two looks, so that a client that keeps trying costs the disk little.
	probeApart = time.Second
	// minProbe and maxProbe bound what a look writes: as much as the write that failed, so that the alarm does not end
	// for a few bytes' sake.
	minProbe, maxProbe = 64 << 10, 16 << 20
	// probeName is the file that a look writes.
	probeName = fileio.TempPrefix + "probe"
)

// alarm is the store's state after a write that failed for a reason of the disk's, such as no space. While it lasts
// objects cannot be written, and can be deleted; it ends by itself when the directory can be written again.
type alarm struct {
	err error
	// need is how many bytes the write had.
	need int
	// last is when a look was taken.
	last time.Time
	// repair has to succeed before anything else is written: what a failed write has changed is still to be put back.
	repair func() error
}

// persist writes and deletes files; the caller holds s.mu. When it returns nil everything is on disk; when it fails,
// everything is as before, in memory and on disk. If even that cannot be achieved at once, nothing else is written
// before it is.
func (s *Store) persist(put []*Item, del []object.Key) error {
	if s.cfg.Dir == "" {
		return nil
	}
	if s.alarm != nil && (len(put) > 0 || s.alarm.repair != nil) {
		if s.probe(false); s.alarm != nil {
			s.refused++
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
	s.refused++
	if fileio.Exhausted(err) || t.undone != nil {
		s.raise(err, t)
	}
	return fmt.Errorf("%w: %w", ErrNotWritable, err)
}

// raise sets the alarm.
func (s *Store) raise(err error, t *transaction) {
	s.alarm = &alarm{err: err, last: s.cfg.Clock.Now(), repair: t.undone, need: minProbe}
	for _, f := range t.put {
		s.alarm.need += len(f.content)
	}
	s.alarm.need = min(s.alarm.need, maxProbe)
	s.cfg.Log.Error("store takes no writes until its directory can be written again; objects can be deleted", "dir", s.cfg.Dir, "error", err)
}

// probe looks whether the directory can be written again, at most every probeApart unless at once; the caller holds
// s.mu.
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
	s.alarm = nil
	s.cfg.Log.Info("store takes writes again", "dir", s.cfg.Dir)
}

// file is one object's file in a transaction.
type file struct {
	rel     string
	content []byte
	// temp is the prepared file, relative like rel.
	temp string
	// aside is where a damaged file that was in the place has been kept.
	aside string
}

// transaction is a write of several files that happens whole or not at all.
type transaction struct {
	put []*file
	del []string
	// undone is set if the transaction failed half-way and could not be undone: it undoes it.
	undone func() error
}

// begin prepares the files of a write. Where it fails nothing has changed.
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

// stage writes the files of a transaction beside their places.
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

// discard removes prepared files. One that cannot be removed is removed at the next start.
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

// commit puts prepared files into their places and deletes. If it fails half-way it undoes what it has changed, and no
// more than that.
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
				// A journal that may be whole must not be finished after a restart.
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

// move renames and deletes, and tells the files that it may have changed.
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

// keepAside gives a damaged file a second name, so that nothing that replaces it takes it from those who may still read
// something in it.
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

// undo brings files back to what is in memory, or to the damaged files that were there. It is a transaction itself: a
// kill on the way leaves the write whole or undone.
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

// byPath finds the item whose file has a path; nil if there is none.
func (s *Store) byPath(rel string) *Item {
	for k, it := range s.items {
		if relPath(k) == rel {
			return it
		}
	}
	return nil
}

// saveBehind copies what was written to the last good state.
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
