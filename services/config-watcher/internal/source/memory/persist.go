package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// journalName holds a write of several objects until all of their files are in place, so that it survives a kill whole or not at all.
const journalName = "journal.json"

// clusterDir stands for "no namespace": no namespace can have this name.
const clusterDir = "_cluster"

// journal is a write in progress.
type journal struct {
	Put    []json.RawMessage `json:"put,omitempty"`
	Delete []string          `json:"delete,omitempty"` // relative paths
}

// relPath is where an object is kept: <kind>.<group>/<namespace>/<name>.json. Every part is escaped, so no name leads out of the directory.
func relPath(k object.Key) string {
	kind := k.Kind
	if k.Group != "" {
		kind += "." + k.Group
	}
	ns := k.Namespace
	if ns == "" {
		ns = clusterDir
	}
	return filepath.Join(url.PathEscape(kind), url.PathEscape(ns), url.PathEscape(k.Name)+".json")
}

// persist writes and deletes files; the caller holds s.mu. When it returns nil everything is on disk; when it fails, everything is as before,
// or, if even that cannot be written, the store takes no more writes until it is restarted.
func (s *Store) persist(put []*Item, del []object.Key) error {
	if s.cfg.Dir == "" {
		return nil
	}
	if s.failure != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, s.failure)
	}
	err := s.writeAll(put, del)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w: %w", ErrNotWritable, err)
	if back := s.rollBack(put, del); back != nil {
		s.failure = errors.Join(err, back)
		return s.failure
	}
	return err
}

// rollBack puts the files of a failed write back to what is in memory.
func (s *Store) rollBack(put []*Item, del []object.Key) error {
	keys := append([]object.Key(nil), del...)
	for _, it := range put {
		keys = append(keys, it.Key)
	}
	var errs []error
	for _, k := range keys {
		path := filepath.Join(s.cfg.Dir, relPath(k))
		if old := s.items[k]; old != nil {
			errs = append(errs, writeFile(path, old.Manifest))
		} else {
			errs = append(errs, removeFile(path))
		}
	}
	errs = append(errs, removeFile(filepath.Join(s.cfg.Dir, journalName)))
	return errors.Join(errs...)
}

func (s *Store) writeAll(put []*Item, del []object.Key) error {
	if len(put)+len(del) > 1 {
		j := journal{}
		for _, it := range put {
			j.Put = append(j.Put, it.Manifest)
		}
		for _, k := range del {
			j.Delete = append(j.Delete, relPath(k))
		}
		content, err := json.Marshal(j)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(s.cfg.Dir, journalName), content); err != nil {
			return err
		}
	}
	var files errgroup.Group
	files.SetLimit(writers)
	dirs := map[string]struct{}{}
	for _, it := range put {
		path := filepath.Join(s.cfg.Dir, relPath(it.Key))
		dirs[filepath.Dir(path)] = struct{}{}
		if err := makeDir(filepath.Dir(path)); err != nil {
			return err
		}
		files.Go(func() error { return replaceFile(path, it.Manifest) })
	}
	if err := files.Wait(); err != nil {
		return err
	}
	for dir := range dirs {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	for _, k := range del {
		if err := removeFile(filepath.Join(s.cfg.Dir, relPath(k))); err != nil {
			return err
		}
	}
	if len(put)+len(del) > 1 {
		return removeFile(filepath.Join(s.cfg.Dir, journalName))
	}
	return nil
}

// writers write files at once: the file system joins their flushes, which is far quicker than one after the other.
const writers = 16

// writeFile replaces a file atomically and durably: content and directory entry are on disk when it returns.
func writeFile(path string, content []byte) error {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := replaceFile(path, content); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replaceFile replaces a file atomically. Its content is on disk when it returns, its name is after syncDir.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".write-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// makeDir creates missing directories and makes their entries durable.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// loadDir finishes an interrupted write and reads every object. A damaged file is a problem, not an error: the others count.
func loadDir(dir string) ([]*Item, object.Problems, error) {
	if err := makeDir(dir); err != nil {
		return nil, nil, err
	}
	if err := replay(dir); err != nil {
		return nil, nil, err
	}
	var items []*Item
	var problems object.Problems
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			return nil
		}
		if strings.HasPrefix(name, ".write-") {
			return os.Remove(path) // of a write that was never acknowledged
		}
		if !strings.HasSuffix(name, ".json") || name == journalName && filepath.Dir(path) == dir {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		it, err := decodeItem(content)
		if err == nil && filepath.Join(dir, relPath(it.Key)) != path {
			err = fmt.Errorf("file holds %s, which belongs elsewhere", it.Key)
		}
		var ps object.Problems
		switch {
		case errors.As(err, &ps):
			for _, p := range ps {
				p.Location = path
				problems = append(problems, p)
			}
		case err != nil:
			problems = append(problems, object.Problem{Location: path, Reason: err.Error(), Remedy: "correct or remove the file and restart"})
		default:
			items = append(items, it)
		}
		return nil
	})
	return items, problems, err
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
	o, err := validate.Document(&manifest.Document{Tree: m})
	if err != nil {
		return nil, err
	}
	return itemOf(o, m)
}

// replay finishes a write that was interrupted after its journal was complete. A journal that is not complete cannot exist: it is renamed into
// place; one that does not parse was damaged otherwise and is left for a person to look at.
func replay(dir string) error {
	path := filepath.Join(dir, journalName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var j journal
	if err := json.Unmarshal(content, &j); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, raw := range j.Put {
		it, err := decodeItem(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := writeFile(filepath.Join(dir, relPath(it.Key)), raw); err != nil {
			return err
		}
	}
	for _, rel := range j.Delete {
		if !filepath.IsLocal(rel) {
			return fmt.Errorf("%s: %q leads out of the directory", path, rel)
		}
		if err := removeFile(filepath.Join(dir, rel)); err != nil {
			return err
		}
	}
	return removeFile(path)
}
