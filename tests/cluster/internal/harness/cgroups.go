package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// hierarchies are where control groups are mounted.
func hierarchies() ([]string, error) {
	raw, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") && !slices.Contains(out, f[1]) {
			out = append(out, f[1])
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no control groups are mounted in /proc/mounts; the kubelet needs them")
	}
	return out, nil
}

// makeCgroups makes a control group in every hierarchy. In cpuset it may use what its parent may: without that no
// process can join it.
func makeCgroups(name string) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		dir := filepath.Join(mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("control group: %w", err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(mount, file))
			if err != nil {
				continue // another hierarchy, or the second version, where an empty value means the parent's
			}
			if len(bytes.TrimSpace(value)) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return fmt.Errorf("control group: %w", err)
			}
		}
	}
	return nil
}

// removeCgroups removes a control group with all below it from every hierarchy. Its processes have been killed; the
// kernel may need a moment for the last.
func removeCgroups(name string, within time.Duration) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(within)
	for {
		var failed error
		for _, mount := range mounts {
			failed = errors.Join(failed, removeTree(filepath.Join(mount, name)))
		}
		if failed == nil || time.Now().After(deadline) {
			return failed
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// removeTree removes a directory of control groups, whose files go with their directory.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}
