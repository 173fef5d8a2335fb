// Package fileio reads files with a bound, and writes files that must outlive the process: atomically, durably, and one
// step at a time, so that a test can make each step fail.
package fileio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

var (
	// ErrTooLarge says that a file has more bytes than its reader accepts.
	ErrTooLarge = errors.New("too large")
	// ErrNotRegular says that a path names a directory, a pipe or a device.
	ErrNotRegular = errors.New("not a regular file")
)

// ReadAll reads to the end. More than limit bytes are ErrTooLarge.
func ReadAll(from io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return content, err
}

// Read reads a file of at most limit bytes. It waits for the other end of a pipe.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := ReadAll(f, limit)
	if errors.Is(err, ErrTooLarge) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return content, err
}

// ReadRegular reads a regular file, see OpenRegular, of at most limit bytes.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, limit)
}

// OpenRegular opens a regular file for reading. A pipe or a device is ErrNotRegular, and is not waited for.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
