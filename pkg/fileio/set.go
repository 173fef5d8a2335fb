package fileio

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names in the directory of a set, which are those of volumes that Kubernetes mounts.
const (
	// setLink is the symbolic link to the directory of the current version.
	setLink = "..data"
	// setPrefix begins the names of the directories of versions.
	setPrefix = "..version-"
)

// StepLink makes a symbolic link.
const StepLink Step = "symbolic link"

// maxSetFile bounds the files that ReplaceSet reads.
const maxSetFile = 16 << 20

// ReplaceSet replaces files in dir that belong together, all at one moment and durably: NAME is a symbolic link to
// ..data/NAME, and ..data is a symbolic link to a directory with one version of all of them. A program that resolves
// ..data once reads one version, which stays until the replacement after the next. Files are open to their owner only,
// and so is dir where it is made here. Regular files at the names become links without a change of their content first.
// If it fails, the files are as before. One goroutine at a time writes to a directory.
func ReplaceSet(dir string, files map[string][]byte) error { return FS{}.ReplaceSet(dir, files) }

// ReplaceSet does what the function ReplaceSet does; each step asks f.Fault first.
func (f FS) ReplaceSet(dir string, files map[string][]byte) error {
	if err := f.replaceSet(dir, files); err != nil {
		return fmt.Errorf("write files in %s: %w", dir, err)
	}
	return nil
}

func (f FS) replaceSet(dir string, files map[string][]byte) error {
	if err := f.MakeDir(dir); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	before, _ := os.Readlink(filepath.Join(dir, setLink))
	if same(dir, names, files) {
		return nil
	}
	held := map[string][]byte{}
	for _, name := range names {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			continue
		}
		content, err := Read(filepath.Join(dir, name), maxSetFile)
		if err != nil {
			return err
		}
		held[name] = content
	}
	if len(held) > 0 {
		version, err := f.version(dir, held)
		if err != nil {
			return err
		}
		before = version
		if err := f.link(dir, version, slices.Sorted(maps.Keys(held))); err != nil {
			return err
		}
	}
	version, err := f.version(dir, files)
	if err != nil {
		return err
	}
	if err := f.link(dir, version, names); err != nil {
		return err
	}
	return f.removeVersions(dir, version, before)
}

// same reports whether dir has these files, as links to one version.
func same(dir string, names []string, files map[string][]byte) bool {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if to, err := os.Readlink(path); err != nil || to != filepath.Join(setLink, name) {
			return false
		}
		if held, err := Read(path, maxSetFile); err != nil || !bytes.Equal(held, files[name]) {
			return false
		}
	}
	return true
}

// version writes a version's directory and returns its name. It leaves nothing behind where it fails.
func (f FS) version(dir string, files map[string][]byte) (name string, err error) {
	if err := f.step(StepMkdir, dir); err != nil {
		return "", err
	}
	path, err := os.MkdirTemp(dir, setPrefix+"*") // mode 0700
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}()
	for name, content := range files {
		if err := f.write(filepath.Join(path, name), content, 0o600); err != nil {
			return "", err
		}
	}
	return filepath.Base(path), nil
}

// link makes a version the current one, and the names links to it.
func (f FS) link(dir, version string, names []string) error {
	if err := f.symlink(version, filepath.Join(dir, setLink)); err != nil {
		return errors.Join(err, os.RemoveAll(filepath.Join(dir, version)))
	}
	for _, name := range names {
		path, to := filepath.Join(dir, name), filepath.Join(setLink, name)
		if held, err := os.Readlink(path); err == nil && held == to {
			continue
		}
		if err := f.symlink(to, path); err != nil {
			return err
		}
	}
	return f.SyncDir(dir)
}

// symlink replaces path by a symbolic link, atomically.
func (f FS) symlink(to, path string) error {
	temp := filepath.Join(filepath.Dir(path), TempPrefix+"link-"+filepath.Base(path))
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a write that was never finished
		return err
	}
	if err := f.step(StepLink, path); err != nil {
		return err
	}
	if err := os.Symlink(to, temp); err != nil {
		return err
	}
	if err := f.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// removeVersions removes all versions but those.
func (f FS) removeVersions(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), setPrefix) || slices.Contains(keep, e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if err := f.step(StepRemove, path); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
