package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// ErrGone means that the store's directory has lost everything that it had.
var ErrGone = errors.New("the store's directory is empty, and it was not when it was last used")

// damage describes a file that cannot be used.
type damage struct {
	problems object.Problems
	// holds replace the object, if it is or may be a security object without a known good version.
	holds []*object.Object
}

// contents is the content of the store's directory.
type contents struct {
	items   []*Item
	lines   map[string][]byte // by path: the files of items, as they should be
	rewrite []string          // paths of files that must be written again
	damaged map[string]damage
	// problems are about the directory as a whole.
	problems object.Problems
}

// load reads the directory and delivers its objects. Run calls it until it succeeds.
func (s *Store) load(ctx context.Context) error {
	c := contents{}
	if s.cfg.Dir != "" {
		var err error
		if c, err = s.read(); err != nil {
			return err
		}
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	delivered, next := s.provisional, map[object.Key]*object.Object{}
	s.update(func() { s.take(c, next) })
	for _, p := range s.allProblems() {
		s.cfg.Log.Error("stored object is damaged", "problem", p.Error())
	}
	s.deliver(ctx, delivered, next)
	s.update(func() { s.loaded = true }) // whoever sees it counts on the delivery
	close(s.ready)
	s.refresh(c)
	return nil
}

// take makes what was read visible, and adds to next what is to be delivered of it; the caller holds both locks.
func (s *Store) take(c contents, next map[object.Key]*object.Object) {
	// Versions of this run are greater than those of every earlier one, deleted objects' included.
	s.version = uint64(s.cfg.Clock.Now().UnixNano())
	s.provisional = nil
	for _, it := range c.items {
		s.items[it.Key] = it
		if v, err := strconv.ParseUint(it.Version, 10, 64); err == nil && v > s.version {
			s.version = v
		}
		next[it.Key] = it.object
	}
	s.damaged, s.problems = c.damaged, c.problems
	for _, d := range c.damaged {
		for _, h := range d.holds {
			next[h.Key] = h
		}
	}
	s.failure, s.lastGood = nil, time.Time{}
}

// deliver passes on the difference between two sets of objects; the caller holds s.writing.
func (s *Store) deliver(ctx context.Context, before, next map[object.Key]*object.Object) {
	var events []source.Event
	for k := range before {
		if next[k] == nil {
			events = append(events, source.Event{Key: k})
		}
	}
	for k, o := range next {
		if old := before[k]; old == nil || old.Digest != o.Digest {
			events = append(events, source.Event{Key: k, Object: o})
		}
	}
	if len(events) > 0 {
		s.handler(ctx, Name, events)
	}
}

// refresh writes files again that are not as they should be, such as Secrets that are encrypted with another key than
// the first, and updates the last good state; the caller holds s.writing. A file that cannot be written stays as it is.
func (s *Store) refresh(c contents) {
	var files errgroup.Group
	files.SetLimit(writers)
	for _, rel := range c.rewrite {
		files.Go(func() error { return s.cfg.FS.Replace(filepath.Join(s.cfg.Dir, rel), c.lines[rel]) })
	}
	if err := files.Wait(); err != nil {
		s.cfg.Log.Warn("stored objects cannot be written again with a checksum and the newest key, they stay as they are", "error", err)
	}
	if s.cfg.Saved == nil || s.cfg.Dir == "" {
		return
	}
	for rel, line := range c.lines {
		s.cfg.Saved.Put(s.savedPath(rel), line)
	}
	s.cfg.Saved.Put(s.savedPath(markName), []byte("{}\n"))
	saved, err := s.cfg.Saved.List(Name)
	if err != nil {
		s.cfg.Log.Warn("last good state cannot be listed, old versions stay", "error", err)
		return
	}
	for _, path := range saved {
		rel, err := filepath.Rel(s.savedDir(), path)
		_, damaged := c.damaged[rel]
		if _, whole := c.lines[rel]; err == nil && !whole && !damaged && rel != markName {
			s.cfg.Saved.Remove(path)
		}
	}
}

// read reads the directory. It fails if a part of it cannot be read. A damaged file is no failure: the object's last
// good version is used, if there is one.
func (s *Store) read() (contents, error) {
	c := contents{lines: map[string][]byte{}, damaged: map[string]damage{}}
	dir := s.cfg.Dir
	if err := s.cfg.FS.MakeDir(dir); err != nil {
		return c, err
	}
	var err error
	if c.problems, err = s.replay(); err != nil {
		return c, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		rel, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && rel == damagedDir:
			return fs.SkipDir
		case d.IsDir():
			return nil
		case fileio.Temporary(name):
			_ = os.Remove(path) // of a write that was never acknowledged
			return nil
		case !strings.HasSuffix(name, ".json"), rel == journalName, rel == markName:
			return nil
		}
		return s.readFile(rel, &c)
	})
	if err != nil {
		return c, err
	}
	return c, s.mark(c)
}

// mark marks the directory as a store's. It fails if the directory was a store and is empty now, since an empty
// directory, such as a volume that is not mounted, must not delete all objects of the mesh.
func (s *Store) mark(c contents) error {
	path := filepath.Join(s.cfg.Dir, markName)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if saved, _ := s.savedObjects(); len(c.items)+len(c.damaged) == 0 && len(saved) > 0 {
		return fmt.Errorf("%s: %w: bring it back, or remove %s from --state-dir to begin with nothing", s.cfg.Dir, ErrGone, s.savedDir())
	}
	if err := s.cfg.FS.Replace(path, []byte("{\"format\":2}\n")); err != nil {
		s.cfg.Log.Warn("store's directory cannot be written", "dir", s.cfg.Dir, "error", err)
	}
	return nil
}

// readFile reads one object.
func (s *Store) readFile(rel string, c *contents) error {
	path := filepath.Join(s.cfg.Dir, rel)
	content, err := os.ReadFile(path)
	if err != nil {
		// A later attempt may succeed: without a good version loading must fail.
		if it, line := s.savedItem(rel); it != nil {
			c.items, c.lines[rel] = append(c.items, it), line
			c.damaged[rel] = damage{problems: object.Problems{served(path, it, "file cannot be read: "+err.Error())}}
			return nil
		}
		return err
	}
	it, current, err := s.decode(content)
	if err == nil && relPath(it.Key) != rel {
		err = fmt.Errorf("file holds %s, which belongs elsewhere", it.Key)
	}
	var refused *refusedError
	switch {
	case errors.Is(err, record.ErrLocked):
		return fmt.Errorf("%s: %w; give the key with --store-encryption-key-file", path, err)
	case errors.As(err, &refused):
		c.damaged[rel] = refused.damage(path)
	case err != nil:
		c.damaged[rel] = s.lost(rel, path, err, c)
	default:
		c.items, c.lines[rel] = append(c.items, it), content
		if !current {
			if c.lines[rel], err = s.cfg.Codec.Encode(record.Record{Key: it.Key, Content: it.Manifest}); err != nil {
				return err
			}
			c.rewrite = append(c.rewrite, rel)
		}
	}
	return nil
}

// lost returns the damage of a file, and adds the object's last good version to c or, if there is none, a hold to the
// damage.
func (s *Store) lost(rel, path string, err error, c *contents) damage {
	if it, _ := s.savedItem(rel); it != nil {
		c.items = append(c.items, it)
		return damage{problems: object.Problems{served(path, it, "file is damaged: "+err.Error())}}
	}
	d := damage{problems: object.Problems{{
		Location: path, Object: keyOf(rel).String(), Reason: "file is damaged, and no good version of it is known: " + err.Error(),
		Remedy: "apply the object again, or delete it; the file is kept",
	}}}
	if h, ok := hold.OfKey(keyOf(rel), path); ok {
		d.holdBy(h)
	}
	return d
}

func (d *damage) holdBy(holds ...hold.Hold) {
	for _, h := range holds {
		h.Object.Source = Name
		d.holds = append(d.holds, h.Object)
		d.problems = append(d.problems, h.Problem())
	}
}

func served(path string, it *Item, reason string) object.Problem {
	return object.Problem{
		Location: path, Object: it.Key.String(), Reason: reason + "; its last good version is served, resource version " + it.Version,
		Remedy: "apply the object again, or delete it; the file is kept",
	}
}

// refusedError is an object that is intact but not valid: a version with other rules has written it.
type refusedError struct {
	problems object.Problems
	doc      *manifest.Document
}

func (e *refusedError) Error() string { return e.problems.Error() }

func (e *refusedError) damage(path string) damage {
	var d damage
	for _, p := range e.problems {
		p.Location = path
		d.problems = append(d.problems, p)
	}
	d.holdBy(hold.Of(e.doc)...)
	return d
}

// decode decodes an object's file. current is false if the file must be written again: it has no checksum, as an
// earlier version wrote it, or is not encrypted as it should be.
func (s *Store) decode(content []byte) (it *Item, current bool, err error) {
	r, err := s.cfg.Codec.Decode(content)
	current = true
	if errors.Is(err, record.ErrDamaged) && plain(content) {
		r, err, current = record.Record{Content: content}, nil, false
	}
	if err != nil {
		return nil, false, err
	}
	it, err = decodeItem(r.Content)
	return it, current && s.cfg.Codec.Current(r), err
}

// plain reports whether content is an object in the format of earlier versions, without a record around it.
func plain(content []byte) bool {
	var o struct {
		APIVersion string `json:"apiVersion"`
	}
	return kjson.Unmarshal(content, &o) == nil && o.APIVersion != ""
}

func decodeItem(content []byte) (*Item, error) {
	var tree any
	if err := kjson.Unmarshal(content, &tree); err != nil {
		return nil, err
	}
	m, ok := tree.(map[string]any)
	if !ok {
		return nil, errors.New("no object")
	}
	if _, ok := m["metadata"].(map[string]any); !ok {
		return nil, errors.New("no metadata")
	}
	doc := &manifest.Document{Tree: m}
	o, err := validate.Document(doc)
	var problems object.Problems
	switch {
	case errors.As(err, &problems):
		return nil, &refusedError{problems: problems, doc: doc}
	case err != nil:
		return nil, err
	}
	return itemOf(o, m)
}

// savedItem is the last good version of an object; nil if there is none.
func (s *Store) savedItem(rel string) (*Item, []byte) {
	if s.cfg.Saved == nil {
		return nil, nil
	}
	line, _, err := s.cfg.Saved.Get(s.savedPath(rel))
	if err != nil {
		return nil, nil
	}
	it, _, err := s.decode(line)
	if err != nil || relPath(it.Key) != rel {
		return nil, nil
	}
	return it, line
}

// savedObjects reads the whole last good state and returns when its newest part was saved; zero if the store was never
// read with this --state-dir.
func (s *Store) savedObjects() (map[object.Key]*object.Object, time.Time) {
	if s.cfg.Saved == nil || s.cfg.Dir == "" {
		return nil, time.Time{}
	}
	_, newest, err := s.cfg.Saved.Get(s.savedPath(markName))
	if err != nil {
		return nil, time.Time{}
	}
	paths, err := s.cfg.Saved.List(s.savedDir())
	if err != nil {
		return nil, time.Time{}
	}
	out := map[object.Key]*object.Object{}
	for _, path := range paths {
		rel, err := filepath.Rel(s.savedDir(), path)
		if err != nil || rel == markName {
			continue
		}
		if _, at, err := s.cfg.Saved.Get(path); err == nil && at.After(newest) {
			newest = at
		}
		if it, _ := s.savedItem(rel); it != nil {
			out[it.Key] = it.object
			continue
		}
		s.cfg.Log.Error("saved object is damaged, it is left out", "source", Name, "file", path)
		if h, ok := hold.OfKey(keyOf(rel), path); ok {
			h.Object.Source = Name
			out[h.Object.Key] = h.Object
		}
	}
	return out, newest
}

// serveSaved delivers the last good state while the directory cannot be read.
func (s *Store) serveSaved(ctx context.Context) {
	objects, at := s.savedObjects()
	s.writing.Lock()
	defer s.writing.Unlock()
	if at.IsZero() || !s.lastGood.IsZero() {
		return
	}
	s.cfg.Log.Warn("source has not been read since the start, its last good state is served", "source", Name, "saved", at)
	s.deliver(ctx, nil, objects)
	s.update(func() { s.provisional, s.lastGood = objects, at })
}
