package file

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/lists"
)

// entry is a file found by list.
type entry struct {
	path string
	name string // name of the file in locations
	root string // configured path that the file belongs to
	info fs.FileInfo
}

// Bounds of one configured path. Beyond them none of it is read, and its last objects stay.
const (
	// maxDepth bounds nested directories, since symbolic links may form a loop.
	maxDepth = 16
	// maxEntries bounds the names in a path, of whatever kind: five times the largest tested mesh with one object in
	// each file. It also bounds loops of links that branch at each level.
	maxEntries = 100_000
	// maxTotalBytes bounds the total size of the files. Decoded objects take up to three times as much, and
	// config-watcher has 1 GiB by default.
	maxTotalBytes = 256 << 20
	// entriesAtOnce is the number of names of a directory that are read before they count against maxEntries.
	entriesAtOnce = 1024
)

// listing is the result of list.
type listing struct {
	files []entry
	dirs  []string // to watch
	// failed are configured paths that could not be read, whose files are unknown.
	failed map[string]error

	wasFile func(e entry) bool
}

func (l *listing) err() error {
	errs := lists.Map(slices.Sorted(maps.Keys(l.failed)), func(p string) error { return l.failed[p] })
	return errors.Join(errs...)
}

// list finds the files of the configured paths, sorted. It skips hidden names, which editors and Kubernetes use. A
// configured file that is known from before and does not exist has been removed; any other path that cannot be read has
// failed. A path that wasFile reports as a former file is listed even if it is no regular file now; reading it fails.
func list(paths []string, known func(path string) bool, wasFile func(e entry) bool) listing {
	l := listing{failed: map[string]error{}, wasFile: wasFile}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist) && known(p):
			l.dirs = append(l.dirs, filepath.Dir(p))
		case err != nil:
			// The parent is watched to notice when the path appears.
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.failed[p] = err
		case info.IsDir() && wasFile(entry{p, filepath.Base(p), p, info}):
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.failed[p] = fmt.Errorf("%s: %w: it was one, and is a directory now: put the file back, or give the directory another name", p,
				fileio.ErrNotRegular)
		case info.IsDir():
			before, bounds := len(l.files), &bounds{root: p}
			if err := l.walk(bounds, p, filepath.Base(filepath.Clean(p)), 0); err != nil {
				l.failed[p] = err
				if bounds.exceeded {
					l.files = l.files[:before]
				}
			}
		case !info.Mode().IsRegular():
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.failed[p] = fmt.Errorf("%s: %w: name a file or a directory", p, fileio.ErrNotRegular)
		default:
			l.dirs = append(l.dirs, filepath.Dir(p))
			l.files = append(l.files, entry{p, filepath.Base(p), p, info})
		}
	}
	slices.SortFunc(l.files, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	l.files = slices.CompactFunc(l.files, func(a, b entry) bool { return a.path == b.path })
	return l
}

// has reports whether a path is among the files.
func (l *listing) has(path string) bool {
	_, found := slices.BinarySearchFunc(l.files, path, func(e entry, path string) int { return strings.Compare(e.path, path) })
	return found
}

// bounds counts the names and bytes that walk finds below a configured path.
type bounds struct {
	root    string
	entries int
	bytes   int64
	// exceeded is true after a bound was exceeded.
	exceeded bool
}

func (b *bounds) add(entries int, bytes int64) error {
	b.entries += entries
	b.bytes += bytes
	switch {
	case b.entries > maxEntries:
		return b.exceed("", "more than %d names in it and below: divide it into several, and name each, or remove what is not for the mesh",
			maxEntries)
	case b.bytes > maxTotalBytes:
		return b.exceed("", "more than %d bytes of files in it and below: divide it into several, and name each, or remove what is not for the "+
			"mesh", maxTotalBytes)
	}
	return nil
}

func (b *bounds) exceed(below, format string, args ...any) error {
	b.exceeded = true
	return fmt.Errorf("directory %s: %s", cmp.Or(below, b.root), fmt.Sprintf(format, args...))
}

func (l *listing) walk(b *bounds, dir, name string, depth int) error {
	if depth > maxDepth {
		return b.exceed(dir, "directories nest deeper than %d levels, or a symbolic link leads back: remove it", maxDepth)
	}
	l.dirs = append(l.dirs, dir)
	items, err := readDir(b, dir)
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
			// A dangling link is listed as a file that cannot be read; anything else has been removed since ReadDir.
			if link, err := os.Lstat(path); err == nil && link.Mode()&fs.ModeSymlink != 0 && manifestName(it.Name()) {
				l.files = append(l.files, entry{path, name + "/" + it.Name(), b.root, link})
			}
			continue
		}
		if err != nil {
			return err
		}
		found := entry{path, name + "/" + it.Name(), b.root, info}
		switch {
		case !info.Mode().IsRegular() && manifestName(it.Name()) && l.wasFile(found):
			l.files = append(l.files, found)
		case info.IsDir():
			if err := l.walk(b, path, name+"/"+it.Name(), depth+1); err != nil {
				return err
			}
		case info.Mode().IsRegular() && manifestName(it.Name()):
			if err := b.add(0, info.Size()); err != nil {
				return err
			}
			l.files = append(l.files, found)
		}
	}
	return nil
}

// readDir is os.ReadDir, unsorted, bounded by maxEntries.
func readDir(b *bounds, dir string) ([]os.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []os.DirEntry
	for {
		some, err := f.ReadDir(entriesAtOnce)
		all = append(all, some...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if err := b.add(len(some), 0); err != nil {
			return nil, err
		}
	}
}

func manifestName(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
