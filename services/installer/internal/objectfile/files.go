package objectfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/pkg/fileio"
)

// Bounds of what is read. config-watcher reads the same files with the same bounds.
const (
	// MaxFileBytes bounds one file.
	MaxFileBytes = 64 << 20
	// maxDepth bounds the nesting of directories, also for symbolic links that form a cycle.
	maxDepth = 16
	// maxEntries bounds the names in a directory and below it, of files of any kind.
	maxEntries = 100_000
	// maxTotalBytes bounds the sum of the sizes of a directory's YAML and JSON files.
	maxTotalBytes = 256 << 20
	// entriesAtOnce is how many names of a directory are read before they are counted against maxEntries.
	entriesAtOnce = 1024
)

// List returns the files that paths name, sorted: a file itself, and of a directory the *.yaml, *.yml and *.json in it
// and below it, without hidden names. config-watcher's file source reads directories in the same way.
func List(paths []string) ([]string, error) {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if errors.Is(err, os.ErrNotExist) {
			return nil, &Error{File: p, Problem: "no such file or directory", Remedy: "name a mesh file or a directory of them", Cause: err}
		}
		if err != nil {
			return nil, fmt.Errorf("mesh file: %w", err)
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		d := &directory{path: p}
		if err := d.walk(p, 0); err != nil {
			return nil, err
		}
		if len(d.files) == 0 {
			return nil, &Error{File: p, Problem: "the directory holds no *.yaml, *.yml or *.json", Remedy: "name a directory of mesh files"}
		}
		files = append(files, d.files...)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// directory is one of the paths, with what was found in it.
type directory struct {
	path    string
	files   []string
	entries int
	bytes   int64
}

func (d *directory) walk(dir string, depth int) error {
	if depth > maxDepth {
		return &Error{File: dir, Problem: fmt.Sprintf("directories nest deeper than %d levels, or a symbolic link leads back", maxDepth),
			Remedy: "remove it"}
	}
	names, err := d.names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil || strings.HasPrefix(name, ".") {
			continue // a broken link, or hidden
		}
		switch {
		case info.IsDir():
			if err := d.walk(path, depth+1); err != nil {
				return err
			}
		case info.Mode().IsRegular() && isMeshFile(name):
			if d.bytes += info.Size(); d.bytes > maxTotalBytes {
				return &Error{File: d.path, Problem: fmt.Sprintf("more than %d bytes of mesh files in it and below", maxTotalBytes),
					Remedy: "divide it into several, and name each"}
			}
			d.files = append(d.files, path)
		}
	}
	return nil
}

// names lists a directory, within maxEntries.
func (d *directory) names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("mesh directory: %w", err)
	}
	defer f.Close()
	var all []string
	for {
		some, err := f.Readdirnames(entriesAtOnce)
		all = append(all, some...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("mesh directory: %w", err)
		}
		if d.entries += len(some); d.entries > maxEntries {
			return nil, &Error{File: d.path, Problem: fmt.Sprintf("more than %d names in it and below", maxEntries),
				Remedy: "divide it into several, and name each, or remove what is not for the mesh"}
		}
	}
}

func isMeshFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// ReadFile reads a file of at most MaxFileBytes. It refuses a pipe or a device, on which config-watcher, which follows
// the same files, would block.
func ReadFile(path string) ([]byte, error) {
	f, err := fileio.OpenRegular(path)
	if errors.Is(err, fileio.ErrNotRegular) {
		return nil, &Error{File: path, Problem: "not a regular file", Remedy: "name a file or a directory"}
	}
	if err != nil {
		return nil, fmt.Errorf("mesh file: %w", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read reads from to its end, at most MaxFileBytes; name is for errors.
func Read(name string, from io.Reader) ([]byte, error) {
	content, err := fileio.ReadAll(from, MaxFileBytes)
	if errors.Is(err, fileio.ErrTooLarge) {
		return nil, &Error{File: name, Problem: fmt.Sprintf("more than %d bytes", MaxFileBytes), Remedy: "divide it into several files"}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return content, nil
}
