// Package hostmesh gives the end-to-end tests machines on a network of their own: network namespaces, whose connections
// nftables rules send through real Envoys on ports 15001 and 15006, and a control plane that serves them. TestMain of a
// package that uses it calls userns.Main.
package hostmesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/netns"
)

// ProxyUID is the user that Istio's proxies run as.
const ProxyUID = 1337

// answers is how long Say waits.
const answers = 30 * time.Second

// Needs skips where the machine lacks what the tests are about. For root on CI that is a failure.
func Needs(t *testing.T) {
	t.Helper()
	userns.Need(t, netns.Programs...)
}

// Host is a machine of the network.
type Host struct {
	IP string

	t       *testing.T
	machine *netns.Host
	// agent is the path of node-agent; not set on the control plane's host.
	agent string
}

// newHost is a machine until the test ends.
func newHost(t *testing.T, machine *netns.Host) *Host {
	t.Helper()
	t.Cleanup(func() {
		for _, left := range netns.Left(machine) {
			t.Errorf("left behind: %s", left)
		}
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Host{IP: machine.IP.String(), t: t, machine: machine}
}

// Redirect sends the host's connections through its proxy, as Istio's init container does, with arguments of
// "node-agent init".
func (h *Host) Redirect(args ...string) {
	h.t.Helper()
	h.run(append([]string{h.agent, "init"}, args...)...)
}

// Start starts a program on the host, which the caller ends.
func (h *Host) Start(p netns.Program) (*netns.Process, error) { return h.machine.Start(p) }

func (h *Host) run(args ...string) {
	h.t.Helper()
	if err := h.machine.Run("", args...); err != nil {
		h.t.Fatal(err)
	}
}

// Dial connects from the host to an IP address and port, by TCP.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	return h.DialBy(ctx, "tcp4", address)
}

// DialBy is Dial with another network.
func (h *Host) DialBy(ctx context.Context, network, address string) (net.Conn, error) {
	return h.machine.Dial(ctx, network, address, "")
}

// ListenPacket opens a UDP port on all addresses of the host until the test ends.
func (h *Host) ListenPacket(port int) net.PacketConn {
	h.t.Helper()
	conn, err := h.machine.ListenPacket(context.Background(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// Listen opens a port on all addresses of the host until the test ends.
func (h *Host) Listen(port int) net.Listener {
	h.t.Helper()
	lis, err := h.machine.Listen(context.Background(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
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
