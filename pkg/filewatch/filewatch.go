// Package filewatch reads files again whenever they may have changed.
package filewatch

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"fairlead.dev/pkg/clock"
)

// Follower follows files that others replace. All fields but Wake are required.
type Follower struct {
	// Files lists the files; it is asked before every Read. They need not exist.
	Files func() []string
	// Read reads them, and says after how long to do so again although no change was seen: notifications get lost on some file systems.
	Read func() time.Duration
	// Wake is received from when there are other files.
	Wake  <-chan struct{}
	Clock clock.Clock
	Log   *slog.Logger
}

// Run reads, and reads again, until ctx ends.
func (f Follower) Run(ctx context.Context) {
	var events <-chan fsnotify.Event
	var failures <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.Log.Warn("cannot watch files, changes are found by re-reading", "error", err)
	} else {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	for {
		files := cleaned(f.Files())
		if watcher != nil {
			watch(watcher, files)
		}
		timer := f.Clock.NewTimer(f.Read())
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C():
				waiting = false
			case <-f.Wake:
				waiting = false
			case e := <-events:
				waiting = !concerns(files, e)
			case err := <-failures:
				f.Log.Warn("watching files failed, changes are found by re-reading", "error", err)
			}
		}
		timer.Stop()
	}
}

func cleaned(files []string) []string {
	out := make([]string, 0, len(files))
	for _, file := range files {
		out = append(out, filepath.Clean(file))
	}
	return out
}

// watch follows the directories of the files, and no others: files are replaced by renaming, and in volumes that Kubernetes mounts by switching
// a link. What cannot be watched is read again.
func watch(w *fsnotify.Watcher, files []string) {
	var dirs []string
	for _, file := range files {
		if dir := filepath.Dir(file); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range w.WatchList() {
		if !slices.Contains(dirs, dir) {
			_ = w.Remove(dir)
		}
	}
	for _, dir := range dirs {
		_ = w.Add(dir) // again: it may be another directory by now
	}
}

// concerns tells whether an event may have changed one of the files, or the directory of one is gone and perhaps replaced. Other files in the
// same directory may change often.
func concerns(files []string, e fsnotify.Event) bool {
	const kubernetesLink = "..data"
	name := filepath.Clean(e.Name)
	return filepath.Base(name) == kubernetesLink ||
		slices.ContainsFunc(files, func(file string) bool { return file == name || filepath.Dir(file) == name })
}
