package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Files lists the files that a source with these paths would read, sorted, for callers that read once (package
// offline). A path that cannot be read and a directory without any file are errors. A named pipe is listed as a file.
func Files(paths []string) ([]string, error) {
	var out []string
	var errs []error
	for _, p := range paths {
		if pipe(p) {
			out = append(out, p)
			continue
		}
		found := list([]string{p}, func(string) bool { return false }, func(entry) bool { return false })
		if err := found.err(); errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s: no such file or directory: name a file or a directory of objects", p))
		} else if err != nil {
			errs = append(errs, err)
		} else if len(found.files) == 0 {
			errs = append(errs, fmt.Errorf("directory %s: no *.yaml, *.yml or *.json in it: name a directory of objects, or a file", p))
		}
		for _, e := range found.files {
			out = append(out, e.path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), errors.Join(errs...)
}

// Content reads a file or, to its end, a named pipe. It reads no more than manifest.Each takes.
func Content(path string) ([]byte, error) {
	if !pipe(path) {
		return readFile(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := Bounded(f)
	return content, errors.Join(err, f.Close())
}

// Bounded reads to the end, but no more than manifest.Each takes and one byte, which makes it refuse the content.
func Bounded(from io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(from, manifest.MaxFileBytes+1))
}

func pipe(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeNamedPipe != 0
}
