package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is a running container of a service.
type container struct {
	name, group string
	limit, peak int64
}

// memory watches the memory of the containers of a namespace's Pods that labels select, "" for all, without that of
// files, as the kernel counts it for their limits, until held is called. That fails the test if one has reached its
// limit, or has been started again.
func (c *cluster) memory(t *testing.T, namespace, labels string) (held func()) {
	t.Helper()
	containers, err := c.containers(t.Context(), namespace, labels)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			for _, of := range containers {
				if now, err := used(of.group); err == nil { // a Pod that an attack replaces is gone
					of.peak = max(of.peak, now)
				}
			}
		}
	}()
	return func() {
		t.Helper()
		stop()
		<-done
		var said []string
		for _, of := range containers {
			said = append(said, fmt.Sprintf("%s %d of %d", of.name, of.peak>>20, of.limit>>20))
			if of.peak == 0 || of.peak >= of.limit {
				t.Errorf("%s has had %d MiB of memory; its limit are %d", of.name, of.peak>>20, of.limit>>20)
			}
		}
		t.Logf("MiB of memory at most: %s", strings.Join(said, ", "))
		pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labels})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				if s.RestartCount > 0 {
					t.Errorf("container %s of %s has restarted", s.Name, p.Name)
				}
			}
		}
	}
}

// containers finds the control groups of a namespace's containers, which are named by their ids.
func (c *cluster) containers(ctx context.Context, namespace, labels string) (out []*container, err error) {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for _, top := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		if _, err := os.Stat(top); err != nil {
			continue
		}
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // it has ended meanwhile
				return nil
			}
			if err == nil && d.IsDir() {
				name := strings.TrimSuffix(filepath.Base(path), ".scope")
				groups[name[strings.LastIndexByte(name, '-')+1:]] = path
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		break
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running == nil {
				continue
			}
			_, id, _ := strings.Cut(s.ContainerID, "://")
			of := &container{name: p.Name, group: groups[id]}
			if of.limit, err = number(of.group, "memory.limit_in_bytes", "memory.max"); err != nil {
				return nil, fmt.Errorf("container %s of %s/%s: %w", s.Name, p.Namespace, p.Name, err)
			}
			out = append(out, of)
		}
	}
	if len(out) == 0 {
		err = fmt.Errorf("no container runs in %s", namespace)
	}
	return out, err
}

// number reads the first of files that is there.
func number(dir string, files ...string) (int64, error) {
	var failed error
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(dir, f))
		if err == nil {
			return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		}
		failed = errors.Join(failed, err)
	}
	return 0, failed
}

// used is what counts against a group's limit and cannot be given up for something else, in bytes.
func used(group string) (int64, error) {
	now, err := number(group, "memory.usage_in_bytes", "memory.current")
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if field == "inactive_file" || field == "active_file" {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, err
			}
			now -= n
		}
	}
	return now, nil
}
