// Package echotest runs applications inside a test.
package echotest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"fairlead.dev/tests/scenarios/internal/echo"
)

// Home is a loopback address that is this process's alone, so that nobody takes its ports.
func Home() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 64 + byte(pid>>16&63), byte(pid >> 8), byte(pid)})
}

var ports atomic.Int32

// Port is a port of Home that nobody has had yet.
func Port() int { return 10000 + int(ports.Add(1)) }

// Run starts an application until the test ends, and returns its journal. in, if not nil, runs a function on another
// machine.
func Run(t *testing.T, c echo.Config, in func(func() error) error) *echo.Journal {
	t.Helper()
	if c.Journal == "" {
		c.Journal = filepath.Join(t.TempDir(), "j")
	}
	if in == nil {
		c.IPs = []string{Home().String()}
		for i := range c.Ports {
			c.Ports[i].Bind = "pod"
		}
		in = func(f func() error) error { return f() }
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- in(func() error { return echo.New(c).Run(ctx, func() { close(ready) }) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return echo.NewJournal(c.Journal)
}

// File writes a file of the test.
func File(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Machine is this one, as one that calls are made from.
type Machine struct{}

// Dial implements caller.Host.
func (Machine) Dial(ctx context.Context, network, address, from string) (net.Conn, error) {
	d := new(net.Dialer)
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return d.DialContext(ctx, network, address)
}
