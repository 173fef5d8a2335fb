package file

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Decoded is what a file's content says.
type Decoded struct {
	Objects []*object.Object
	// Refused are objects that were recognised but are not valid.
	Refused []object.Key
	// Unreadable is true if part of the file could not even be attributed to an object.
	Unreadable bool
	Problems   object.Problems
}

// Decoder makes objects of a file's content. name is for locations: the last element of the configured path and what is below it.
type Decoder func(name string, content []byte) Decoded

// Manifests decodes files of Kubernetes' and Istio's objects.
func Manifests(log *slog.Logger) Decoder {
	return func(name string, content []byte) Decoded {
		docs, problems := manifest.Parse(name, content)
		d := Decoded{Problems: problems, Unreadable: len(problems) > 0}
		for _, doc := range docs {
			o, err := validate.Document(doc)
			var ps object.Problems
			switch {
			case err == nil:
				d.Objects = append(d.Objects, o)
			case errors.Is(err, validate.ErrIgnored):
				key, _ := validate.Identify(doc.Tree)
				log.Debug("object ignored", "object", key.String(), "location", doc.Location())
			case errors.As(err, &ps):
				d.Problems = append(d.Problems, ps...)
				// A kind that does not exist may be the misspelt one of any object.
				key, _ := validate.Identify(doc.Tree)
				if _, known := validate.ScopeOf(key.Group, key.Kind); known && key.Name != "" {
					d.Refused = append(d.Refused, key)
				} else {
					d.Unreadable = true
				}
			default:
				d.Problems = append(d.Problems, object.Problem{Location: doc.Location(), Reason: err.Error()})
				d.Unreadable = true
			}
		}
		return d
	}
}

// entry is a file found by list.
type entry struct {
	path string
	name string // for locations
	root string // the configured path it belongs to
	info fs.FileInfo
}

// maxDepth bounds directories in directories, against symbolic links that lead back.
const maxDepth = 16

// listing is what list finds.
type listing struct {
	files []entry
	dirs  []string // to watch
	// failed are configured paths that could not be read: nothing can be said about their files.
	failed map[string]error
}

func (l *listing) err() error {
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(l.failed)) {
		errs = append(errs, l.failed[p])
	}
	return errors.Join(errs...)
}

// list finds the files of the configured paths, sorted. Hidden names are skipped: they are editors' and Kubernetes' own. A configured file
// that was there before (known) and is not now has been removed; any other path that cannot be read has failed.
func list(paths []string, known func(path string) bool) listing {
	l := listing{failed: map[string]error{}}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist) && known(p):
			l.dirs = append(l.dirs, filepath.Dir(p))
		case err != nil:
			// The parent is watched so that the path is noticed when it comes.
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.failed[p] = err
		case info.IsDir():
			if err := l.walk(p, p, filepath.Base(filepath.Clean(p)), 0); err != nil {
				l.failed[p] = err
			}
		default:
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.files = append(l.files, entry{p, filepath.Base(p), p, info})
		}
	}
	slices.SortFunc(l.files, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	l.files = slices.CompactFunc(l.files, func(a, b entry) bool { return a.path == b.path })
	return l
}

func (l *listing) walk(root, dir, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: directories nest deeper than %d levels, or a symbolic link leads back", dir, maxDepth)
	}
	l.dirs = append(l.dirs, dir)
	items, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, it := range items {
		if strings.HasPrefix(it.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, it.Name())
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since ReadDir, or a link into nothing
		}
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			if err := l.walk(root, path, name+"/"+it.Name(), depth+1); err != nil {
				return err
			}
		case info.Mode().IsRegular() && manifestName(it.Name()):
			l.files = append(l.files, entry{path, name + "/" + it.Name(), root, info})
		}
	}
	return nil
}

func manifestName(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// fileState is what is known of one file.
type fileState struct {
	root    string
	info    fs.FileInfo
	sum     [sha256.Size]byte
	objects []*object.Object
	// problems of the newest content.
	problems object.Problems
	// since is when the file was first seen missing or empty while it has objects.
	since time.Time
}

// read brings the state up to date with the file. It returns when to look again, 0 if there is no need, and whether objects or problems may
// have changed.
func (st *fileState) read(f entry, decode Decoder, source string, full bool, now time.Time) (again time.Duration, changed bool) {
	unchanged := st.info != nil && os.SameFile(st.info, f.info) && st.info.Size() == f.info.Size() && st.info.ModTime().Equal(f.info.ModTime())
	if unchanged && !full {
		st.since = time.Time{}
		return 0, false
	}
	content, err := readFile(f.path)
	if err != nil {
		st.info = nil
		st.problems = object.Problems{{Location: f.path, Reason: "cannot be read: " + err.Error(), Remedy: "make the file readable for config-watcher"}}
		return time.Second, true
	}
	if len(content) == 0 && len(st.objects) > 0 {
		// Either somebody is writing it just now, or it is empty for good.
		if wait := st.missing(now); wait > 0 {
			return wait, false
		}
	}
	sum := sha256.Sum256(content)
	if sum == st.sum && !unreadable(st.problems) {
		st.info, st.since = f.info, time.Time{}
		return 0, false
	}
	next, problems := st.next(decode(f.name, content), source)
	if age := now.Sub(f.info.ModTime()); len(next) < len(st.objects) && age >= 0 && age < quiet {
		// Perhaps only the first part has been written yet.
		return quiet - age, false
	}
	st.info, st.since, st.sum = f.info, time.Time{}, sum
	st.objects, st.problems = next, problems
	return 0, true
}

func unreadable(ps object.Problems) bool {
	return len(ps) == 1 && strings.HasPrefix(ps[0].Reason, "cannot be read: ")
}

// next are the objects after new content: its valid ones, and the last good version of those that it has in a form that is not valid; if part
// of the content cannot be attributed, any object that is not in the rest may be meant by it and stays.
func (st *fileState) next(d Decoded, source string) ([]*object.Object, object.Problems) {
	next := d.Objects
	have := map[object.Key]bool{}
	for _, o := range d.Objects {
		o.Source = source
		have[o.Key] = true
	}
	for _, old := range st.objects {
		if !have[old.Key] && (d.Unreadable || slices.Contains(d.Refused, old.Key)) {
			next = append(next, old)
			have[old.Key] = true
		}
	}
	return next, d.Problems
}

// missing tells how long to wait before the file counts as gone; 0 if it does.
func (st *fileState) missing(now time.Time) time.Duration {
	if len(st.objects) == 0 {
		return 0
	}
	if st.since.IsZero() {
		st.since = now
	}
	if wait := goneAfter - now.Sub(st.since); wait > 0 {
		return wait
	}
	return 0
}

// readFile reads a file with a bound.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, manifest.MaxFileBytes+1))
	return content, errors.Join(err, f.Close())
}
