package fileio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Step is one call to the operating system that a write consists of.
type Step string

// Steps.
const (
	StepMkdir  Step = "mkdir"
	StepCreate Step = "create"
	StepWrite  Step = "write"
	StepSync   Step = "sync"
	StepRename Step = "rename"
	StepRemove Step = "remove"
	StepDir    Step = "sync directory"
)

// TempPrefix begins the names of files that are being written. One that is found at the start is of a write that was
// never finished.
const TempPrefix = ".write-"

// FS is the file system. The zero FS is the operating system's. It is safe for concurrent use.
type FS struct {
	// Fault, if set, is asked before each step and makes it fail by an error. Tests set it.
	Fault func(step Step, path string) error
}

func (f FS) step(s Step, path string) error {
	if f.Fault == nil {
		return nil
	}
	return f.Fault(s, path)
}

// Write replaces the file at path, or the symbolic link there, atomically and durably: whoever opens it reads the old
// content or the new, and the new content and its name are on disk when Write returns. The directory must exist. The
// file has exactly this mode, whatever the umask and the mode of the file that was there. A device, pipe or socket is
// not replaced: that is an error.
func Write(path string, content []byte, mode fs.FileMode) error {
	if err := (FS{}).write(path, content, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Output writes what a user has asked for to the path that the user has named. It is Write for a new or regular file.
// What is written to a device or a pipe goes into it, and what is written to a symbolic link, such as /dev/stdout, goes
// where the link leads.
func Output(path string, content []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err != nil || info.Mode().IsRegular() {
		return Write(path, content, mode)
	}
	return os.WriteFile(path, content, mode)
}

// Replace is Write for a file that only its owner may read. Missing directories are made, open to their owner only.
func Replace(path string, content []byte) error { return FS{}.Replace(path, content) }

// Prepare writes content to a new file in dir, which only its owner may read, and returns its path; the content is on
// disk then. Where it fails it leaves nothing behind.
func (f FS) Prepare(dir string, content []byte) (string, error) {
	return f.prepare(dir, content, 0o600)
}

func (f FS) prepare(dir string, content []byte, mode fs.FileMode) (string, error) {
	if err := f.step(StepCreate, dir); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(dir, TempPrefix+"*") // mode 0600
	if err != nil {
		return "", err
	}
	if err = f.step(StepWrite, file.Name()); err == nil {
		_, err = file.Write(content)
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		if err = f.step(StepSync, file.Name()); err == nil {
			err = file.Sync()
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// Rename gives a prepared file its name. The name is on disk after SyncDir.
func (f FS) Rename(from, to string) error {
	if err := f.step(StepRename, to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// Replace does what the function Replace does; each step asks f.Fault first.
func (f FS) Replace(path string, content []byte) error {
	if err := f.MakeDir(filepath.Dir(path)); err != nil {
		return err
	}
	return f.write(path, content, 0o600)
}

func (f FS) write(path string, content []byte, mode fs.FileMode) error {
	const special = fs.ModeDevice | fs.ModeNamedPipe | fs.ModeSocket
	if info, err := os.Lstat(path); err == nil && info.Mode()&special != 0 {
		return errors.New("there is a device, a pipe or a socket, which is not replaced")
	}
	dir := filepath.Dir(path)
	temp, err := f.prepare(dir, content, mode)
	if err != nil {
		return err
	}
	if err := f.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return f.SyncDir(dir)
}

// Remove removes a file durably; that there is none is no error.
func (f FS) Remove(path string) error {
	if err := f.step(StepRemove, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		// No such file, or not even its directory.
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		return err
	}
	return f.SyncDir(filepath.Dir(path))
}

// MakeDir makes missing directories, open to their owner only, and makes their entries durable.
func (f FS) MakeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := f.MakeDir(parent); err != nil {
			return err
		}
	}
	if err := f.step(StepMkdir, dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		info, statErr := os.Stat(dir)
		if !errors.Is(err, fs.ErrExist) || statErr != nil || !info.IsDir() {
			return err
		}
	}
	return f.SyncDir(parent)
}

// SyncDir makes the names in a directory durable.
func (f FS) SyncDir(dir string) error {
	if err := f.step(StepDir, dir); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) { // the file system cannot flush a directory
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Temporary tells the name of a file that is being written.
func Temporary(name string) bool { return strings.HasPrefix(name, TempPrefix) }

// Exhausted tells an error that is the disk's and not the file's: no write can be expected to succeed until somebody
// mends it.
func Exhausted(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO},
		func(e error) bool { return errors.Is(err, e) })
}
