package statedir

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Listener is a unix socket of mode 0600 that is removed when it is closed.
// Who may connect is checked by the server that uses it (rpc.ServerConfig's
// PeerUIDs); the mode is the first fence, not the only one.
type Listener struct {
	*net.UnixListener
	path string
}

// Listen opens the socket name and clears what a killed agent left there.
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
	// The listener may know the socket by a name in /proc that is gone by the
	// time it closes; Close removes the file itself.
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

// Dial connects to the socket at path, however long that path is.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	var conn net.Conn
	err := viaShort(path, func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// viaShort calls f with a name for path that fits into a socket address: path
// itself, or one through an open descriptor of its directory.
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
