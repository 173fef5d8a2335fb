package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// Files gives a workload's proxy files, each of them replaced at once, or takes away those without a text.
func (h *Harness) Files(_ context.Context, workload string, files map[string]*format.FileText) error {
	dir, err := h.FileDir(workload)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if filepath.Base(name) != name {
			return fmt.Errorf("file %q of %s: not the name of a file", name, workload)
		}
		file := filepath.Join(dir, name)
		if text == nil {
			err = os.Remove(file)
		} else {
			err = errors.Join(os.WriteFile(file+".new", []byte(*text), 0o600), os.Chown(file+".new", proxyUID, proxyUID),
				os.Rename(file+".new", file))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropFiles takes away what workloads were given.
func (h *Harness) dropFiles() error {
	return wait.Each(h.order, func(l *workload) error { return os.RemoveAll(l.path("files")) })
}
