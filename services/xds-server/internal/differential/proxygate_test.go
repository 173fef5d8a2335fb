package differential_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"fairlead.dev/services/xds-server/internal/envoytest"
)

// proxyGate forwards a unix socket to one of several servers. A change of the server breaks the connections, as the end
// of a server does.
type proxyGate struct {
	socket   string
	listener net.Listener

	mu     sync.Mutex
	target string
	open   map[net.Conn]struct{}
}

func startGate(t *testing.T, target string) *proxyGate {
	t.Helper()
	socket := envoytest.Socket(t)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := &proxyGate{socket: socket, listener: listener, target: target, open: map[net.Conn]struct{}{}}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			conn, err := g.listener.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { g.relay(conn) })
		}
	})
	t.Cleanup(func() {
		_ = g.listener.Close() // Accept returns the error
		g.move(target)
		relays.Wait()
	})
	return g
}

func (g *proxyGate) relay(down net.Conn) {
	g.mu.Lock()
	up, err := net.Dial("tcp", g.target)
	if err == nil {
		g.open[down], g.open[up] = struct{}{}, struct{}{}
	}
	g.mu.Unlock()
	if err != nil {
		_ = down.Close() // as the server has
		return
	}
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // broken on purpose
		_, _ = to.Close(), from.Close()
	}
	both.Go(func() { pipe(up, down) })
	both.Go(func() { pipe(down, up) })
	both.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, down)
	delete(g.open, up)
}

// move breaks all connections; new ones lead to the target.
func (g *proxyGate) move(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = target
	for conn := range g.open {
		_ = conn.Close() // the copying goroutine notices
	}
}
