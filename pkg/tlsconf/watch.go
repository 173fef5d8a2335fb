package tlsconf

import (
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watch is told of changes by the file system. It follows the directories, because files are replaced by renaming and, in volumes
// that Kubernetes mounts, by switching the symbolic link "..data". Where it cannot, the re-reading of Files.Run remains.
type watch struct {
	watcher *fsnotify.Watcher
	events  <-chan fsnotify.Event
	errors  <-chan error
	names   map[string]bool
	dirs    map[string]bool // value: followed already
}

func (f *Files) newWatch() *watch {
	w := &watch{names: map[string]bool{"..data": true}, dirs: map[string]bool{}}
	for _, file := range []string{f.cfg.CertFile, f.cfg.KeyFile, f.cfg.RootFile} {
		if file != "" {
			w.names[filepath.Base(file)] = true
			w.dirs[filepath.Dir(file)] = false
		}
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.cfg.Log.Warn("cannot watch files, changes are found by re-reading", "error", err)
		return w
	}
	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	return w
}

// add follows the directories that exist by now.
func (w *watch) add() {
	if w.watcher == nil {
		return
	}
	for dir, followed := range w.dirs {
		if !followed {
			w.dirs[dir] = w.watcher.Add(dir) == nil
		}
	}
}

// concerns tells whether an event may have changed one of the files; other files in the same directory may change often.
func (w *watch) concerns(e fsnotify.Event) bool {
	if w.dirs[e.Name] && e.Has(fsnotify.Remove|fsnotify.Rename) {
		w.dirs[e.Name] = false // the directory itself is gone and perhaps replaced
		return true
	}
	return w.names[filepath.Base(e.Name)]
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}
