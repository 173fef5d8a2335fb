package statedir

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Listener listens on a unix socket of mode 0600 and removes it when it is closed. Its server checks the user of each
// client too (rpc.ServerConfig.PeerUIDs).
type Listener struct {
	*net.UnixListener
	path string
}

// Listen opens the socket name. It first removes one that a killed agent left there.
func (d *Dir) Listen(name string) (*Listener, error) {
	path := d.Path(name)
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	var inner *net.UnixListener
	err := viaShort(path, func(short string) (err error) {
		inner, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	// The listener may have opened the socket by a path in /proc that no longer exists when it closes, so Close removes
	// the file.
	inner.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		_ = inner.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return &Listener{UnixListener: inner, path: path}, nil
}

// Close stops listening and removes the socket.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if err == nil {
		_ = removeStale(l.path)
	}
	return err
}

// Dial connects to the socket at path, which may be longer than a socket address.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	var conn net.Conn
	err := viaShort(path, func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// viaShort calls f with a path to the same file that fits into a socket address: path itself, or one through an open
// descriptor of its directory.
func viaShort(path string, f func(string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path))
	if len(short) > maxSocketPath {
		return fmt.Errorf("the file name %s is too long for a unix socket: at most %d bytes", filepath.Base(path), maxSocketPath)
	}
	return f(short)
}
