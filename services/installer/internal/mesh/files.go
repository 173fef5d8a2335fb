package mesh

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

// Bounds of what is read, those of config-watcher, which reads the same files.
const (
	// MaxFileBytes bounds one file.
	MaxFileBytes = 64 << 20
	// maxDepth bounds directories in directories, against symbolic links that lead back.
	maxDepth = 16
	// maxEntries bounds the names in a directory and below it, whatever they are.
	maxEntries = 100_000
	// maxTotalBytes bounds the mesh files of a directory together.
	maxTotalBytes = 256 << 20
	// entriesAtOnce is how many names of a directory are in memory at a time before they count against maxEntries.
	entriesAtOnce = 1024
)

// Files lists the mesh files that paths name, sorted: a file stands for itself, a directory for the *.yaml, *.yml and
// *.json in it and in its subdirectories. Hidden names are skipped. config-watcher's file source reads directories in
// the same way.
func Files(paths []string) ([]string, error) {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if errors.Is(err, os.ErrNotExist) {
			return nil, &Error{File: p, Problem: "no such file or directory", Remedy: "name a mesh file or a directory of them"}
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

// directory is one that a path names, and what was found in it.
type directory struct {
	path    string
	files   []string
	entries int
	bytes   int64
}

func (d *directory) walk(dir string, depth int) error {
	if depth > maxDepth {
		return &Error{File: dir, Problem: fmt.Sprintf("directories nest deeper than %d levels, or a symbolic link leads back", maxDepth), Remedy: "remove it"}
	}
	names, err := d.names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil || strings.HasPrefix(name, ".") {
			continue // a link into nothing, or hidden
		}
		switch {
		case info.IsDir():
			if err := d.walk(path, depth+1); err != nil {
				return err
			}
		case info.Mode().IsRegular() && isMeshFile(name):
			if d.bytes += info.Size(); d.bytes > maxTotalBytes {
				return &Error{File: d.path, Problem: fmt.Sprintf("more than %d bytes of mesh files in it and below", maxTotalBytes), Remedy: "divide it into several, and name each"}
			}
			d.files = append(d.files, path)
		}
	}
	return nil
}

// names lists a directory as far as the bound.
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
			return nil, &Error{File: d.path, Problem: fmt.Sprintf("more than %d names in it and below", maxEntries), Remedy: "divide it into several, and name each, or remove what is not for the mesh"}
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

// ReadFile reads a mesh file with a bound. A pipe or a device is refused rather than waited for: config-watcher follows
// the same files.
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

// Read reads what is called name to its end, with a bound.
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
