// Package statedir is the agent's private directory (mode 0700), which holds Envoy's bootstrap and the unix sockets
// between agent and Envoy. Open takes it for one agent at a time, Dir.Listen opens a socket there, and Dial connects to
// one.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/fileio"
)

// Names of the files in the directory, which other programs use too.
const (
	XDS       = "XDS"
	SDS       = "SDS"
	Admin     = "envoy-admin.sock"
	Bootstrap = "envoy-bootstrap.json"
	Patched   = "envoy-bootstrap.pb" // Bootstrap with what EnvoyFilters change
	Cache     = "svid"
	Token     = "token"      // what a metadata server gives
	LastGood  = "last-good"  // the sealed configuration of package lastgood
	Trust     = "trust.json" // the adopted bundle of package trustbundle
	lockFile  = "agent.lock"
)

// maxSocketPath is the longest path that fits into sockaddr_un with its final zero.
const maxSocketPath = 107

// SocketPath is the absolute path of a socket, for programs with another working directory. It is an error if the path
// does not fit into a socket address.
func (d *Dir) SocketPath(name string) (string, error) {
	path := d.Path(name)
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("socket %s: %d bytes, at most %d fit into a socket's address: give --state-dir a shorter path", path, len(path),
			maxSocketPath)
	}
	return path, nil
}

// Dir is an existing state directory.
type Dir struct {
	path string
	lock *dirlock.Lock
}

// Open makes the directory if it is absent, makes sure that only this user has access, and locks it, so that two agents
// never share one. Close releases the lock.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("state directory %s belongs to uid %d, the agent runs as %d: give --state-dir a directory of its own", abs, owner,
			os.Geteuid())
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(abs, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	lock, err := dirlock.Acquire(filepath.Join(abs, lockFile))
	if _, inUse := errors.AsType[*dirlock.InUseError](err); inUse {
		return nil, fmt.Errorf("state directory %s is in use by another agent: give each its own --state-dir", abs)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return &Dir{path: abs, lock: lock}, nil
}

// Close releases the directory. Sockets are removed by their listeners.
func (d *Dir) Close() error { return d.lock.Release() }

// Path is the absolute path of a file in the directory.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// EnvoyPath is the path of a socket for Envoy, whose working directory is this one: absolute if it fits into a socket
// address, else relative.
func (d *Dir) EnvoyPath(name string) string {
	if p := d.Path(name); len(p) <= maxSocketPath {
		return p
	}
	return name
}

// Write replaces a file whole, mode 0600.
func (d *Dir) Write(name string, data []byte) error { return fileio.Write(d.Path(name), data, 0o600) }

// removeStale removes the socket that a killed agent left at path. The caller holds the directory's lock, so no process
// listens there.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	return os.Remove(path)
}
