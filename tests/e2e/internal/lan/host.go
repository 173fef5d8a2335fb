// Package lan gives the end-to-end tests machines on a network of their own: network namespaces on a bridge, whose connections nftables rules
// send through real Envoys on ports 15001 and 15006, and a control plane that serves them. It needs root.
package lan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ProxyUID is the user that Istio's proxies run as.
const ProxyUID = 1337

// answers is how long Say waits.
const answers = 8 * time.Second

// Needs skips where the machine lacks what the tests are about. On CI, which is root, that is a failure.
func Needs(t *testing.T) {
	t.Helper()
	var missing []string
	if os.Getuid() != 0 {
		missing = append(missing, "root")
	}
	for _, program := range []string{"ip", "nft", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	switch {
	case len(missing) == 0:
	case os.Getenv("CI") != "" && os.Getuid() == 0:
		t.Fatalf("needs %s", strings.Join(missing, ", "))
	default:
		t.Skipf("needs %s to make network namespaces", strings.Join(missing, ", "))
	}
}

// Host is a machine: a network namespace with a loopback device.
type Host struct {
	// IP is its address on the bridge.
	IP string

	t         *testing.T
	namespace string
	// agent is the path of node-agent; not set on the control plane's host.
	agent string
}

// newHost makes a namespace that is removed when the test ends.
func newHost(t *testing.T, name, ip string) *Host {
	t.Helper()
	h := &Host{IP: ip, t: t, namespace: fmt.Sprintf("fl%d-%s", os.Getpid(), name)}
	run(t, "ip", "netns", "add", h.namespace)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", h.namespace).CombinedOutput(); err != nil {
			t.Errorf("remove namespace %s: %v: %s", h.namespace, err, out)
		}
	})
	h.run("ip", "link", "set", "lo", "up")
	return h
}

// bridge gives h a bridge with its address, to which other hosts are plugged.
func (h *Host) bridge() {
	// An address of its own: otherwise it takes the lowest of its ports, and hosts that are there would look for the old one.
	h.run("ip", "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
	h.run("ip", "addr", "add", h.IP+"/15", "dev", "br0")
	h.run("ip", "link", "set", "br0", "up")
}

// plug connects h to the bridge of sw, which also becomes its way to addresses nobody has.
func (h *Host) plug(sw *Host, port int) {
	cable := fmt.Sprintf("w%d", port)
	run(h.t, "ip", "link", "add", "eth0", "netns", h.namespace, "type", "veth", "peer", "name", cable, "netns", sw.namespace)
	sw.run("ip", "link", "set", cable, "master", "br0", "up")
	h.run("ip", "addr", "add", h.IP+"/15", "dev", "eth0")
	h.run("ip", "link", "set", "eth0", "up")
	h.run("ip", "route", "add", "default", "via", sw.IP)
}

// Redirect sends the host's connections through its proxy, as Istio's init container does, with arguments of "node-agent init".
func (h *Host) Redirect(args ...string) {
	h.t.Helper()
	h.run(append([]string{h.agent, "init"}, args...)...)
}

func (h *Host) run(args ...string) {
	h.t.Helper()
	run(h.t, append([]string{"ip", "netns", "exec", h.namespace}, args...)...)
}

// in runs f on a thread that belongs to the host: sockets that f makes are the host's.
func (h *Host) in(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		ns, err := os.Open("/run/netns/" + h.namespace)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- fmt.Errorf("enter %s: %w", h.namespace, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Dial connects from the host to an IP address and port, by TCP.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	return h.DialBy(ctx, "tcp4", address)
}

// DialBy is Dial with another network.
func (h *Host) DialBy(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.in(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// ListenPacket opens a UDP port on all addresses of the host until the test ends.
func (h *Host) ListenPacket(port int) net.PacketConn {
	h.t.Helper()
	var conn net.PacketConn
	if err := h.in(func() (err error) {
		conn, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// Listen opens a port on all addresses of the host until the test ends.
func (h *Host) Listen(port int) net.Listener {
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

// Say opens a connection, sends a message, which may be empty, and returns the first answer.
func (h *Host) Say(address, message string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answers)
	defer cancel()
	conn, err := h.Dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answers))
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
