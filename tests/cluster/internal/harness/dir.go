// Package harness runs a Kubernetes cluster of one node on this machine, in namespaces of its own: real etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, containerd, CNI plugins and CoreDNS,
// without a registry and without a way out. Join adds a second node, without a control plane, for who needs two.
// Everything runs below one process, the cluster's process 1 (Init): when it ends, so do all processes, mounts,
// interfaces and rules of the cluster. What it leaves is control groups and files of one directory, which Down and the
// next Up remove.
package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Dir is the directory of a cluster. Several clusters may run side by side, each with one of its own.
type Dir string

// hidden are directories that are covered by others inside the cluster, or have a meaning of their own.
var hidden = []string{"/run", "/var/run", "/var/log", "/var/lib", "/proc", "/sys", "/dev"}

// NewDir checks a path, which need not exist.
func NewDir(path string) (Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for _, h := range hidden {
		if abs == h || strings.HasPrefix(abs, h+"/") {
			return "", fmt.Errorf("the cluster's directory cannot be %s: inside the cluster something else is at %s; give another --dir", abs, h)
		}
	}
	return Dir(abs), nil
}

// Path is that of a file of the cluster.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// CNI is the directory with bin, the node's CNI plugins, and net.d, their configurations.
func (d Dir) CNI(elem ...string) string { return d.Path(append([]string{"cni"}, elem...)...) }

// Kubeconfig is the administrator's.
func (d Dir) Kubeconfig() string { return d.Path("admin.kubeconfig") }

// Log is the log of a component, or of the cluster.
func (d Dir) Log(name string) string { return d.Path("log", name+".log") }

// readyFile is there once the cluster is up, or its second node.
func (d Dir) readyFile() string { return d.Path("ready") }

// second is the directory of the cluster's second node.
func (d Dir) second() Dir { return Dir(d.Path("second")) }

// Cgroup is the name of the cluster's control group in every hierarchy.
func (d Dir) Cgroup() string {
	sum := sha256.Sum256([]byte(d))
	return "fairlead-" + hex.EncodeToString(sum[:4])
}

// identity tells a process from later ones with its number.
type identity struct {
	PID int
	// Start is when it started, in ticks since the machine did.
	Start uint64
}

func (d Dir) identityFile() string { return d.Path("process-1.json") }

// writeIdentity records the calling process, which sees the machine's /proc.
func (d Dir) writeIdentity() error {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	var me identity
	if _, err := fmt.Sscan(link, &me.PID); err != nil {
		return fmt.Errorf("/proc/self is %q: %w", link, err)
	}
	if me.Start, err = started(me.PID); err != nil {
		return err
	}
	raw, err := json.Marshal(me)
	if err != nil {
		return err
	}
	unfinished := d.identityFile() + ".new"
	if err := os.WriteFile(unfinished, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, d.identityFile())
}

// started returns when a process was started.
func started(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.Starttime, err
}

// waitEnd reports whether a process ends within a time. When a process 1 has ended, so have all in its namespace.
func waitEnd(pid int, within time.Duration) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH), nil
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
			int(within.Milliseconds())) //nolint:gosec // a descriptor is small
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// ErrNotUp says that there is no cluster.
var ErrNotUp = errors.New("no cluster is up")

// PID is that of the cluster's process 1; ErrNotUp if it does not run.
func (d Dir) PID() (int, error) {
	raw, err := os.ReadFile(d.identityFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w in %s", ErrNotUp, d)
	}
	if err != nil {
		return 0, err
	}
	var was identity
	if err := json.Unmarshal(raw, &was); err != nil {
		return 0, fmt.Errorf("%s: %w", d.identityFile(), err)
	}
	start, err := started(was.PID)
	if err == nil && start == was.Start {
		var ended bool
		if ended, err = waitEnd(was.PID, 0); err == nil && !ended {
			return was.PID, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return 0, err
	}
	return 0, fmt.Errorf("%w in %s: it has ended by itself, its last words are in %s", ErrNotUp, d, d.Log("cluster"))
}

// Up is the PID of a cluster that is ready.
func (d Dir) Up() (int, error) {
	pid, err := d.PID()
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(d.readyFile()); err != nil {
		return 0, fmt.Errorf("the cluster in %s is not ready", d)
	}
	return pid, nil
}

// lock makes the directory and keeps every other Up and Down out until unlock.
func (d Dir) lock() (unlock func(), err error) {
	for {
		if err := os.MkdirAll(string(d), 0o755); err != nil {
			return nil, err
		}
		f, err := os.Open(string(d))
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", d, err)
		}
		// Down removes the directory before it unlocks it.
		mine, err := f.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Stat(string(d)); err == nil && os.SameFile(mine, now) {
				return func() { f.Close() }, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// clean removes what a cluster leaves whose processes have ended: control groups, and all in the directory but the
// entries in keep.
func (d Dir) clean(keep ...string) error {
	err := errors.Join(removeCgroups(d.Cgroup(), 10*time.Second), removeCgroups(d.second().Cgroup(), 10*time.Second))
	entries, readErr := os.ReadDir(string(d))
	err = errors.Join(err, readErr)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = errors.Join(err, os.RemoveAll(d.Path(e.Name())))
		}
	}
	return err
}
