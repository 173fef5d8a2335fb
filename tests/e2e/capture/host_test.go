// Package capture tests redirected traffic: workloads in network namespaces of their own, whose connections nftables rules send through
// real Envoys on ports 15001 and 15006. It needs root.
package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// host is a machine: a network namespace with a loopback device.
type host struct {
	t    *testing.T
	name string
	// ip is its address on the bridge; empty for the host that holds the bridge until it is set.
	ip string
}

// newHost makes a namespace that is removed when the test ends.
func newHost(t *testing.T, name, ip string) *host {
	t.Helper()
	h := &host{t: t, name: fmt.Sprintf("fl%d-%s", os.Getpid(), name), ip: ip}
	run(t, "ip", "netns", "add", h.name)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", h.name).CombinedOutput(); err != nil {
			t.Errorf("remove namespace %s: %v: %s", h.name, err, out)
		}
	})
	h.run("ip", "link", "set", "lo", "up")
	return h
}

// bridge gives h a bridge with its address, to which other hosts are plugged.
func (h *host) bridge() {
	h.run("ip", "link", "add", "br0", "type", "bridge")
	h.run("ip", "addr", "add", h.ip+"/15", "dev", "br0")
	h.run("ip", "link", "set", "br0", "up")
}

// plug connects h to the bridge of sw, which also becomes its way to addresses nobody has.
func (h *host) plug(sw *host, port int) {
	cable := fmt.Sprintf("w%d", port)
	run(h.t, "ip", "link", "add", "eth0", "netns", h.name, "type", "veth", "peer", "name", cable, "netns", sw.name)
	sw.run("ip", "link", "set", cable, "master", "br0", "up")
	h.run("ip", "addr", "add", h.ip+"/15", "dev", "eth0")
	h.run("ip", "link", "set", "eth0", "up")
	h.run("ip", "route", "add", "default", "via", sw.ip)
}

// redirect sends all TCP connections of the host through the proxy that runs as proxyUID, as Istio's init container does.
func (h *host) redirect() {
	h.t.Helper()
	rules := filepath.Join(h.t.TempDir(), "rules.nft")
	if err := os.WriteFile(rules, fmt.Appendf(nil, `
table ip fairlead {
	chain output {
		type nat hook output priority -100;
		meta skuid %d return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15001
	}
	chain prerouting {
		type nat hook prerouting priority -100;
		tcp dport { 15020, 15021, 15090 } return
		meta l4proto tcp redirect to :15006
	}
}
`, proxyUID), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.run("nft", "-f", rules)
}

func (h *host) run(args ...string) {
	h.t.Helper()
	run(h.t, append([]string{"ip", "netns", "exec", h.name}, args...)...)
}

// start runs a program on the host until the test ends. Its log is printed if the test fails.
func (h *host) start(uid int, env []string, path string, args ...string) {
	h.t.Helper()
	all := []string{"netns", "exec", h.name}
	if uid != 0 {
		all = append(all, "setpriv", "--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(uid), "--clear-groups")
	}
	cmd := exec.Command("ip", append(append(all, path), args...)...)
	cmd.Env = append(os.Environ(), env...)
	log, err := os.Create(filepath.Join(h.t.TempDir(), filepath.Base(path)+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		kill.Stop()
		if err != nil {
			h.t.Errorf("%s on %s: %v", filepath.Base(path), h.name, err)
		}
		log.Close()
		if h.t.Failed() {
			h.t.Logf("last lines of %s on %s:\n%s", filepath.Base(path), h.name, tail(log.Name(), 50))
		}
	})
}

// in runs f on a thread that belongs to the host: sockets that f makes are the host's.
func (h *host) in(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		ns, err := os.Open("/run/netns/" + h.name)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- fmt.Errorf("enter %s: %w", h.name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// dial connects from the host to an IP address and port.
func (h *host) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = h.in(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp4", address)
		return err
	})
	return conn, err
}

// listen opens a port on all addresses of the host until the test ends.
func (h *host) listen(port int) net.Listener {
	h.t.Helper()
	var lis net.Listener
	if err := h.in(func() (err error) {
		lis, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { lis.Close() })
	return lis
}

// say opens a connection, sends a message and returns the first answer.
func (h *host) say(address, message string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := h.dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, message); err != nil {
		return "", err
	}
	buf := make([]byte, 1024)
	n, err := conn.Read(buf)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return string(buf[:n]), err
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
