package consul

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// files follows the files of a directory.
type files struct {
	dir   string
	grace time.Duration
	// known is true after the directory has been read once.
	known bool
	last  map[string]seenFile
}

// seenFile is a file that was there.
type seenFile struct {
	written written
	// gone is when it was found to be gone; zero while it is there.
	gone time.Time
}

// read lists the declarations in the directory, sorted by path. A file that is gone stays for the grace, because an
// editor may be about to write it again. If the directory cannot be read, what it had stays.
func (f *files) read(now time.Time) ([]written, error) {
	entries, err := os.ReadDir(f.dir)
	if err == nil {
		f.known = true
		there := map[string]seenFile{}
		for _, e := range entries {
			name := e.Name()
			if ext := filepath.Ext(name); strings.HasPrefix(name, ".") || e.IsDir() || ext != ".yaml" && ext != ".yml" {
				continue
			}
			path := filepath.Join(f.dir, name)
			there[path] = seenFile{written: fromFile(path)}
			if len(there) > 2*maxRegistries {
				break
			}
		}
		for path, s := range f.last {
			if _, is := there[path]; is {
				continue
			}
			if s.gone.IsZero() {
				s.gone = now
			}
			if now.Sub(s.gone) < f.grace {
				there[path] = s
			}
		}
		f.last = there
	}
	out := make([]written, 0, len(f.last))
	for _, s := range f.last {
		out = append(out, s.written)
	}
	slices.SortFunc(out, func(a, b written) int { return strings.Compare(a.place, b.place) })
	return out, err
}
