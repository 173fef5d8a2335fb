package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

func TestNetwork(t *testing.T) {
	userns.Need(t, Programs...)
	n, err := NewNetwork("test", true)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []*Host
	for _, name := range []string{"one", "two"} {
		h, err := New(name)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	if err := n.Plug(hosts...); err != nil {
		t.Fatal(err)
	}
	one, two := hosts[0], hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	t.Run("machines reach each other", func(t *testing.T) {
		for _, ip := range []netip.Addr{two.IP, two.IP6} {
			address := netip.AddrPortFrom(ip, 80).String()
			lis, err := two.Listen(ctx, "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := one.Dial(ctx, "tcp", address, "")
			if err != nil {
				t.Fatal(err)
			}
			host, _, _ := net.SplitHostPort(conn.LocalAddr().String())
			if host != one.IP.String() && host != one.IP6.String() {
				t.Errorf("dialled from %s", host)
			}
			conn.Close()
			lis.Close()
		}
	})
	t.Run("a machine that somebody else has made is the same one", func(t *testing.T) {
		again, err := Open("two again", two.path(), two.IP)
		if err != nil {
			t.Fatal(err)
		}
		lis, err := again.Listen(ctx, "tcp", netip.AddrPortFrom(two.IP, 80).String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := one.Dial(ctx, "tcp", lis.Addr().String(), "")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		lis.Close()
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if _, err := Open("nothing", "/nowhere", two.IP); err == nil {
			t.Error("a namespace that is not there can be opened")
		}
	})
	t.Run("the hub stands for addresses", func(t *testing.T) {
		for from, to := range map[string]netip.Addr{"198.19.0.9:80": two.IP, "[fd19::9]:80": two.IP6, "10.96.0.1:80": one.IP} {
			backend := netip.AddrPortFrom(to, 8080)
			if err := n.Translate(map[netip.AddrPort][]netip.AddrPort{netip.MustParseAddrPort(from): {backend}}); err != nil {
				t.Fatal(err)
			}
			server := two
			if to == one.IP {
				server = one
			}
			lis, err := server.Listen(ctx, "tcp", backend.String())
			if err != nil {
				t.Fatal(err)
			}
			caller := one
			if server == one {
				caller = two
			}
			conn, err := caller.Dial(ctx, "tcp", from, "")
			if err != nil {
				t.Fatal(from, err)
			}
			came, err := lis.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if came.RemoteAddr().String() != conn.LocalAddr().String() {
				t.Errorf("%s: came from %s, not %s", from, came.RemoteAddr(), conn.LocalAddr())
			}
			came.Close()
			conn.Close()
			lis.Close()
		}
		if err := n.Translate(nil); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("another address of a machine", func(t *testing.T) {
		for _, source := range []string{"198.18.0.200", "10.9.8.7", "fd77::1"} {
			ip := netip.MustParseAddr(source)
			if err := one.AddAddress(ip); err != nil {
				t.Fatal(err)
			}
			to := two.IP
			if ip.Is6() {
				to = two.IP6
			}
			lis, err := two.Listen(ctx, "tcp", netip.AddrPortFrom(to, 80).String())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := one.Dial(ctx, "tcp", lis.Addr().String(), source)
			if err != nil {
				t.Fatal(source, err)
			}
			conn.Close()
			lis.Close()
		}
	})
	t.Run("addresses that nobody has are refused at once", func(t *testing.T) {
		for _, address := range []string{"198.18.7.7:80", "198.19.0.1:80", "192.0.2.1:80", "[2001:db8::1]:80"} {
			testkit.Quick(t, time.Second, func() time.Duration {
				began := time.Now()
				conn, err := one.Dial(ctx, "tcp", address, "")
				if err == nil {
					conn.Close()
					t.Errorf("%s was reached", address)
				}
				return time.Since(began)
			})
		}
	})
	t.Run("connections are cut", func(t *testing.T) {
		lis, err := two.Listen(ctx, "tcp", two.IP.String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		var conns []net.Conn
		for range 2 {
			conn, err := one.Dial(ctx, "tcp", lis.Addr().String(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
		}
		kept := conns[1].LocalAddr().String()
		if err := one.Disconnect(func(local, remote netip.AddrPort) bool {
			return local.String() == kept && remote.String() == lis.Addr().String()
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[1].Write([]byte("x")); err != nil {
			t.Errorf("the one to keep: %v", err)
		}
		_ = conns[0].SetReadDeadline(time.Now().Add(2 * time.Second))
		var timeout net.Error
		if _, err := conns[0].Read(make([]byte, 1)); errors.As(err, &timeout) && timeout.Timeout() {
			t.Logf("this kernel does not cut connections")
		}
	})
	t.Run("programs have a resolv.conf of their own and are ended", func(t *testing.T) {
		dir := t.TempDir()
		conf, out := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "out")
		if err := os.WriteFile(conf, []byte("nameserver 198.18.0.1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		// The shell has reaped what it ran by the time it prints the user's number: from then on there is one process.
		p, err := two.Start(Program{Name: "cat", Path: "/bin/sh", Args: []string{"-c", `cat /etc/resolv.conf; echo "$(id -u)"; exec sleep 60`},
			UID: 1337, Stdout: out, Stderr: out, ResolvConf: conf})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var text string
		for !strings.Contains(text, "1337") && ctx.Err() == nil {
			more, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			text += string(more)
		}
		if !strings.HasPrefix(text, "nameserver 198.18.0.1") {
			t.Errorf("saw %q", text)
		}
		if left := Left(one, two); len(left) != 1 || !strings.Contains(left[0], "on two") {
			t.Errorf("left: %v", left)
		}
		p.Kill()
		if left := Left(one, two); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if err := p.Died(); err != nil {
			t.Errorf("killed, so that is wanted: %v", err)
		}
	})
}
