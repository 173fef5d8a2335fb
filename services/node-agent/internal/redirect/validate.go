package redirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ExitUnverified is the exit code of "node-agent init --run-validation", and of Istio's, where Validate fails: by it
// "node-agent cni" finds Pods that have no rules.
const ExitUnverified = 126

// retry is how often Validate connects.
const retry = 100 * time.Millisecond

// Validate tries the rules: it listens where the proxy will and connects, as the proxy's user, to an address that
// nothing but a rule leads to the listener. It returns nil once a connection has arrived, and an error if none has when
// ctx ends, which "node-agent init" lets end after --probe-timeout. It needs no privileges if this process runs as the
// proxy's user, and otherwise CAP_SETUID.
func Validate(ctx context.Context, o *Options) error {
	if o.Mode == None {
		return nil
	}
	type try struct{ listen, to string }
	tries := []try{{"127.0.0.1", passthroughV4}}
	if hasAddress(passthroughV6) { // who has written rules for IPv6 has added it
		tries = append(tries, try{"::1", passthroughV6})
	}
	for _, t := range tries {
		to := netip.AddrPortFrom(netip.MustParseAddr(t.to), o.Probe)
		if err := validate(ctx, o, net.JoinHostPort(t.listen, strconv.Itoa(int(o.Inbound))), t.listen, to); err != nil {
			return err
		}
	}
	return nil
}

func hasAddress(address string) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(net.ParseIP(address))
	})
}

func validate(ctx context.Context, o *Options, listen, from string, to netip.AddrPort) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen where the proxy will: %w", err)
	}
	defer lis.Close()
	arrived := make(chan struct{})
	go accepted(lis, to.Port(), arrived)
	var last error
	for {
		if last = connect(ctx, o, from, to); last == nil {
			last = errors.New("the connection arrived elsewhere")
		}
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: a connection to %s did not get to %s, the proxy's inbound port: %w", ErrUnverified, to, listen, last)
		case <-time.After(retry):
		}
	}
}

// accepted closes arrived when a connection to another port comes in.
func accepted(lis net.Listener, port uint16, arrived chan<- struct{}) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		got, err := originalPort(conn.(*net.TCPConn))
		conn.Close()
		if err == nil && got == port {
			close(arrived)
			return
		}
	}
}

// originalDestination is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST.
const originalDestination = 80

// originalPort is the port that a redirected connection was opened to.
func originalPort(conn *net.TCPConn) (port uint16, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	level := unix.SOL_IP
	if conn.LocalAddr().(*net.TCPAddr).IP.To4() == nil {
		level = unix.SOL_IPV6
	}
	controlErr := raw.Control(func(fd uintptr) {
		// Both address structures begin with the family and the port, and the second is as long as this one.
		var info *unix.IPv6MTUInfo
		if info, err = unix.GetsockoptIPv6MTUInfo(int(fd), level, originalDestination); err == nil {
			port = binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port))
		}
	})
	return port, errors.Join(controlErr, err)
}

// connect opens a connection as the proxy's user, and closes it.
func connect(ctx context.Context, o *Options, from string, to netip.AddrPort) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, which changes its user, ends with the goroutine
		done <- dial(ctx, o, from, to)
	}()
	return <-done
}

func dial(ctx context.Context, o *Options, from string, to netip.AddrPort) error {
	if uid := uint32(os.Geteuid()); !slices.Contains(o.UIDs, uid) && !slices.Contains(o.GIDs, uint32(os.Getegid())) {
		// The kernel compares the user that a socket was made by, for access to files.
		user := int(o.UIDs[0])
		if err := unix.Setfsuid(user); err != nil {
			return err
		}
		if now, err := unix.SetfsuidRetUid(-1); err != nil || now != user {
			return fmt.Errorf("the rules cannot be tried as user %d: run this as user %d, whose connections they are about, or with CAP_SETUID", uid,
				user)
		}
	}
	dialer := net.Dialer{Timeout: retry, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}
