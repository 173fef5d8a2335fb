// Package lastgood keeps the last good state of the sources in files, so that it outlives a restart. Sources call Put
// and Remove; Dir.Run writes the changes a moment later, and Flush at the end of the process writes the rest.
package lastgood

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
)

const (
	// delay is how long changes gather before they are written, such as the files of one `kubectl apply`. A kill within
	// it loses only the last good version of objects that were good less than this ago.
	delay = 200 * time.Millisecond
	// retryAfter is the pause after a failed write. Changes gather meanwhile, at most one per file.
	retryAfter = 2 * time.Second
	// writers is the number of files written at once; the file system joins their flushes.
	writers = 16
)

// Config of a Dir. Path, Log and Clock are required.
type Config struct {
	// Path is the directory. It is created by the first write.
	Path  string
	FS    fileio.FS
	Log   *slog.Logger
	Clock clock.Clock
}

// Dir is a directory of last good states, one file each. It is safe for concurrent use.
type Dir struct {
	cfg  Config
	wake chan struct{}

	// flushing is held while files are written, so that older content never overwrites newer.
	flushing sync.Mutex

	mu      sync.Mutex
	pending map[string][]byte // by relative path; nil removes the file
	failure error
}

// New returns a Dir; Run writes.
func New(cfg Config) *Dir {
	return &Dir{cfg: cfg, wake: make(chan struct{}, 1), pending: map[string][]byte{}}
}

// Put sets a file's content.
func (d *Dir) Put(rel string, content []byte) { d.set(rel, content) }

// Remove removes a file.
func (d *Dir) Remove(rel string) { d.set(rel, nil) }

func (d *Dir) set(rel string, content []byte) {
	d.mu.Lock()
	d.pending[rel] = content
	d.mu.Unlock()
	notify.Wake(d.wake)
}

// Get returns a file's content and when it was saved. The error wraps fs.ErrNotExist if there is no such file.
func (d *Dir) Get(rel string) ([]byte, time.Time, error) {
	d.flushing.Lock() // content that is being written is in neither place
	defer d.flushing.Unlock()
	d.mu.Lock()
	content, waits := d.pending[rel]
	d.mu.Unlock()
	switch {
	case waits && content == nil:
		return nil, time.Time{}, fs.ErrNotExist
	case waits:
		return content, d.cfg.Clock.Now(), nil
	}
	path := filepath.Join(d.cfg.Path, rel)
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	content, err = os.ReadFile(path)
	return content, info.ModTime(), err
}

// List returns the relative paths of the files on disk below a directory, sorted.
func (d *Dir) List(below string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(filepath.Join(d.cfg.Path, below), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() || fileio.Temporary(e.Name()) {
			return err
		}
		rel, err := filepath.Rel(d.cfg.Path, path)
		out = append(out, rel)
		return err
	})
	return out, err
}

// Failure is why the newest state could not be saved; nil if it was. Run tries again.
func (d *Dir) Failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Run writes changes until ctx ends. Call Flush after the sources have stopped.
func (d *Dir) Run(ctx context.Context) error {
	d.clean()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		}
		wait := delay
		for {
			if !clock.Sleep(ctx, d.cfg.Clock, wait) {
				return nil
			}
			if d.Flush() == nil {
				break
			}
			wait = retryAfter
		}
	}
}

// clean removes temporary files that a kill has left.
func (d *Dir) clean() {
	d.flushing.Lock()
	defer d.flushing.Unlock()
	_ = filepath.WalkDir(d.cfg.Path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && fileio.Temporary(e.Name()) {
			_ = os.Remove(path)
		}
		return nil
	})
}

// Flush writes all pending changes. Those that fail stay pending.
func (d *Dir) Flush() error {
	d.flushing.Lock()
	defer d.flushing.Unlock()
	d.mu.Lock()
	todo := d.pending
	d.pending = map[string][]byte{}
	before := d.failure
	d.mu.Unlock()
	var files errgroup.Group
	files.SetLimit(writers)
	for rel, content := range todo {
		files.Go(func() error {
			err := d.write(filepath.Join(d.cfg.Path, rel), content)
			if err != nil {
				d.mu.Lock()
				if _, newer := d.pending[rel]; !newer {
					d.pending[rel] = content
				}
				d.mu.Unlock()
			}
			return err
		})
	}
	err := files.Wait()
	if err != nil {
		err = fmt.Errorf("last good state cannot be saved in %s: %w; make room or make it writable", d.cfg.Path, err)
		if before == nil {
			d.cfg.Log.Warn("last good state of sources cannot be saved, trying again", "error", err)
		}
	} else if before != nil {
		d.cfg.Log.Info("last good state of sources is saved again", "dir", d.cfg.Path)
	}
	d.mu.Lock()
	d.failure = err
	d.mu.Unlock()
	return err
}

// write brings a file to its content. It does not write equal content, which most files have after a restart.
func (d *Dir) write(path string, content []byte) error {
	if content == nil {
		return d.cfg.FS.Remove(path)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return d.cfg.FS.Replace(path, content)
}
