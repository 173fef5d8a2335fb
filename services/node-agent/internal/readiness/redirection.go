package readiness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/clock"
)

const (
	// probePort is where the rules of redirection are tried; Istio's tools use it too.
	probePort = 15002
	// answerTimeout bounds one try. A connection that is not redirected is answered in microseconds.
	answerTimeout = 2 * time.Second
	// Tries are this far apart, at first and later.
	firstPause, longestPause = 50 * time.Millisecond, 2 * time.Second
	// patience is how long redirection may take to begin before the log says that it has not.
	patience = 5 * time.Second
)

// ErrNotRedirected means that the workload's connections bypass the proxy.
var ErrNotRedirected = errors.New("traffic is not redirected to the proxy")

// Redirection finds out whether connections of this network namespace are redirected to the proxy. It connects to an
// address at which it listens itself, and which the rules redirect even for the proxy's user: while the connection
// arrives, no rules are in force. It is safe for concurrent use.
type Redirection struct {
	listen, from netip.Addr
	port         uint16
	clock        clock.Clock
	log          *slog.Logger
	state        atomic.Pointer[error] // nil after success
}

// NewRedirection makes a Redirection for a workload whose first address is of IPv6 or not. Run tries.
func NewRedirection(v6 bool, c clock.Clock, log *slog.Logger) *Redirection {
	r := &Redirection{listen: netip.MustParseAddr("127.0.0.6"), from: netip.MustParseAddr("127.0.0.1"), port: probePort, clock: clock.Or(c),
		log: log}
	if v6 {
		r.listen, r.from = netip.MustParseAddr("::6"), netip.IPv6Loopback()
	}
	r.fail(fmt.Errorf("%w: not tried yet", ErrNotRedirected))
	return r
}

func (r *Redirection) fail(err error) { r.state.Store(&err) }

// Check returns nil once redirection was seen to work, and otherwise why not and what to do.
func (r *Redirection) Check() error {
	if err := r.state.Load(); err != nil {
		return *err
	}
	return nil
}

// Run tries until redirection works, and returns when ctx ends.
func (r *Redirection) Run(ctx context.Context) error {
	began, told := r.clock.Now(), false
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longestPause) {
		err := r.try(ctx)
		if err == nil {
			r.state.Store(nil)
			r.log.Info("traffic is redirected to the proxy", "after", r.clock.Now().Sub(began).Round(time.Millisecond))
			<-ctx.Done()
			break
		}
		r.fail(err)
		if !told && r.clock.Now().Sub(began) >= patience {
			told = true
			r.log.Error("the workload stays unready", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-r.clock.After(pause):
		}
	}
	return nil
}

// direct is what the listener writes on a connection that was not redirected.
const direct = 'd'

// try opens one connection.
func (r *Redirection) try(ctx context.Context) error {
	lis, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer lis.Close()
	from, err := net.Listen("tcp", netip.AddrPortFrom(r.from, 0).String()) // reserves a port
	if err != nil {
		return fmt.Errorf("%w: no port to try it from: %w", ErrNotRedirected, err)
	}
	local := from.Addr().(*net.TCPAddr)
	_ = from.Close()
	go answer(lis, local.AddrPort())
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := (&net.Dialer{LocalAddr: local}).DialContext(ctx, "tcp", lis.Addr().String())
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil // somebody listens at the address: the connection went elsewhere, where the proxy does not listen yet
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotRedirected, err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).CloseWrite() // the proxy then gives up at once
	_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err == nil && first[0] == direct {
		return fmt.Errorf("%w: a connection to %s was not. Look why the rules of \"node-agent init\", or of the CNI plugin, are not in force "+
			"in this "+
			"network namespace; ISTIO_META_INTERCEPTION_MODE=NONE is for workloads without rules", ErrNotRedirected, lis.Addr())
	}
	return nil
}

// open listens at the port that rules redirect in all modes, or at another one if that is taken.
func (r *Redirection) open(ctx context.Context) (net.Listener, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(r.listen, r.port).String())
	if errors.Is(err, unix.EADDRINUSE) {
		lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(r.listen, 0).String())
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("%w: the loopback interface has no address %s, which \"node-agent init\" and the CNI plugin add", ErrNotRedirected,
			r.listen)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: it cannot be tried: %w", ErrNotRedirected, err)
	}
	return lis, nil
}

// answer writes direct on the connection that comes from the address, and nothing on others, such as the proxy's own,
// until the listener is closed.
func answer(lis net.Listener, from netip.AddrPort) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok && remote.AddrPort().Port() == from.Port() &&
			remote.AddrPort().Addr().Unmap() == from.Addr().Unmap() {
			_, _ = conn.Write([]byte{direct})
		}
		_ = conn.Close()
	}
}
