// Package filewatch calls a function whenever files may have changed: Follower.Run watches their directories and also
// calls it at intervals. tlsconf.Files, config-watcher's access rules and node-agent's SDS files use it.
package filewatch

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
)

// Follower watches files that other programs replace. All fields but Wake and Debounce are required.
type Follower struct {
	// Files lists the files; Run calls it before every Read. They need not exist.
	Files func() []string
	// Read reads the files. It returns after how long Run calls it again even without a notification, because
	// notifications get lost on some file systems.
	Read func() time.Duration
	// Debounce, if it is more than 0, is how long no notification must have come before Run calls Read for one; after
	// ten times that it calls Read in any case.
	Debounce time.Duration
	// Wake makes Run call Files and Read at once; send to it when there are other files.
	Wake  <-chan struct{}
	Clock clock.Clock
	Log   *slog.Logger
}

// Run calls Read at once, and after every change, until ctx ends.
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
		files := lists.Map(f.Files(), filepath.Clean)
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
				if waiting = !concerns(files, e); !waiting {
					f.settle(ctx, files, events)
				}
			case err := <-failures:
				f.Log.Warn("watching files failed, changes are found by re-reading", "error", err)
			}
		}
		timer.Stop()
	}
}

// settle waits until the files have not changed for Debounce, or ctx ends.
func (f Follower) settle(ctx context.Context, files []string, events <-chan fsnotify.Event) {
	if f.Debounce <= 0 {
		return
	}
	latest := f.Clock.After(10 * f.Debounce)
	quiet := f.Clock.NewTimer(f.Debounce)
	defer func() { quiet.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-latest:
			return
		case <-quiet.C():
			return
		case e := <-events:
			if concerns(files, e) {
				quiet.Stop()
				quiet = f.Clock.NewTimer(f.Debounce)
			}
		}
	}
}

// watch watches the directories of the files: files are replaced by renaming, and in volumes that Kubernetes mounts by
// changing a symbolic link. Files that cannot be watched are still read at intervals.
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
		_ = w.Add(dir) // even if watched: the directory may have been replaced
	}
}

// concerns reports whether an event may have changed one of the files or removed its directory. Other files of the same
// directory may change often.
func concerns(files []string, e fsnotify.Event) bool {
	const kubernetesLink = "..data"
	name := filepath.Clean(e.Name)
	return filepath.Base(name) == kubernetesLink ||
		slices.ContainsFunc(files, func(file string) bool { return file == name || filepath.Dir(file) == name })
}
