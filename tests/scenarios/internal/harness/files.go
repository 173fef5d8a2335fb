package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/format"
)

// FileDir is where Files puts what a workload is given.
func (h *Harness) FileDir(workload string) (string, error) {
	l, err := h.find(workload)
	if err != nil {
		return "", err
	}
	return l.path("files"), nil
}

// Files gives a workload's proxy, or config-watcher, files, each of them replaced at once, or takes away those without
// a text.
func (h *Harness) Files(_ context.Context, target string, files map[string]*format.FileText) error {
	dir, uid := h.objectsDir(), 0
	if target != contract.ConfigWatcherAccount {
		var err error
		if dir, err = h.FileDir(target); err != nil {
			return err
		}
		uid = proxyUID
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if filepath.Base(name) != name {
			return fmt.Errorf("file %q of %s: not the name of a file", name, target)
		}
		if err := put(filepath.Join(dir, name), text, uid); err != nil {
			return err
		}
	}
	return nil
}

// put replaces a file at once, or removes it for lack of a text.
func put(file string, text *format.FileText, uid int) error {
	if text == nil {
		return os.Remove(file)
	}
	next := file + ".new"
	return errors.Join(os.WriteFile(next, []byte(*text), 0o600), os.Chown(next, uid, uid), os.Rename(next, file))
}

// dropFiles takes away what workloads and config-watcher were given.
func (h *Harness) dropFiles() error {
	objects, _ := filepath.Glob(filepath.Join(h.objectsDir(), "*")) // the pattern is a good one
	for _, file := range objects {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return wait.Each(h.order, func(l *workload) error { return os.RemoveAll(l.path("files")) })
}
