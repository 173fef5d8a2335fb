// Package netns makes machines for tests: network namespaces on a bridge, with no way out of the machine they run on,
// and programs in them. Nothing of it outlives the process that made it: the namespaces have no names in the file
// system, and the kernel ends the programs with their parent.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Programs are those that machines are made with.
var Programs = []string{"ip", "nft"}

// Host is a machine: a network namespace with a loopback device. It is safe for concurrent use.
type Host struct {
	// Name is for people.
	Name string
	// IP is its address on the network, IP6 the other one if the network has IPv6.
	IP, IP6 netip.Addr

	namespace *os.File
	inode     uint64
	// hub is what the machine is plugged to.
	hub *Host
}

// New makes a machine that is connected to nothing.
func New(name string) (*Host, error) {
	h := &Host{Name: name}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- h.unshare()
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	return h, nil
}

func (h *Host) unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := h.hold("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	// As Istio's injection has it: the proxy of a gateway listens on low ports and is not root.
	return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
}

// Open is a machine that somebody else has made and plugged in, such as a Pod: file names its network namespace.
func Open(name, file string, ip netip.Addr) (*Host, error) {
	h := &Host{Name: name, IP: ip}
	if err := h.hold(file); err != nil {
		return nil, fmt.Errorf("network namespace of %s: %w", name, err)
	}
	return h, nil
}

// hold keeps the namespace that a file names.
func (h *Host) hold(file string) error {
	var err error
	if h.namespace, err = os.Open(file); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(h.namespace.Fd()), &stat); err != nil {
		return errors.Join(err, h.namespace.Close())
	}
	h.inode = stat.Ino
	return nil
}

// Close gives the namespace up; it ends with the last program in it.
func (h *Host) Close() error { return h.namespace.Close() }

// path names the namespace to other programs.
func (h *Host) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.namespace.Fd()) }

// In runs f on a thread that belongs to the machine: sockets that f makes are the machine's.
func (h *Host) In(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := h.enter(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (h *Host) enter() error {
	if err := unix.Setns(int(h.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace of %s: %w", h.Name, err)
	}
	return nil
}

// Run runs a program on the machine to its end; the error has what it printed.
func (h *Host) Run(stdin string, args ...string) error {
	return h.In(func() error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), h.Name, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// Dial connects from the machine to an IP address and port; network is tcp or udp, and source another address of the
// machine or empty.
func (h *Host) Dial(ctx context.Context, network, address, source string) (conn net.Conn, err error) {
	d := net.Dialer{}
	if source != "" {
		ip := net.ParseIP(source)
		if ip == nil {
			return nil, fmt.Errorf("source address %q: want an IP address", source)
		}
		d.LocalAddr = &net.TCPAddr{IP: ip}
		if strings.HasPrefix(network, "udp") {
			d.LocalAddr = &net.UDPAddr{IP: ip}
		}
	}
	err = h.In(func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen opens a TCP port of the machine.
func (h *Host) Listen(ctx context.Context, network, address string) (lis net.Listener, err error) {
	err = h.In(func() error {
		lis, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return lis, err
}

// ListenPacket opens a UDP port of the machine.
func (h *Host) ListenPacket(ctx context.Context, network, address string) (conn net.PacketConn, err error) {
	err = h.In(func() error {
		conn, err = new(net.ListenConfig).ListenPacket(ctx, network, address)
		return err
	})
	return conn, err
}

// AddAddress gives the machine one more address, and tells the hub where it is.
func (h *Host) AddAddress(ip netip.Addr) error {
	prefix := netip.PrefixFrom(ip, ip.BitLen()).String()
	own, others := []string{"ip", "addr", "add", prefix, "dev", device}, "others"
	if ip.Is6() {
		own, others = append(own, "nodad"), "others6"
	}
	return errors.Join(
		h.Run("", own...), h.hub.Run("", "ip", "route", "replace", prefix, "dev", "br0"),
		h.hub.Run(fmt.Sprintf("add element inet refusal %s { %s }\n", others, ip), "nft", "-f", "-"),
	)
}
