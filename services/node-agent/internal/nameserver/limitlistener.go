package nameserver

import (
	"container/list"
	"net"
	"sync"
)

// limitListener bounds the open connections by closing the oldest. So a client that holds many silent connections does
// not keep others out.
type limitListener struct {
	net.Listener
	max int

	mu   sync.Mutex
	open list.List // of net.Conn, oldest first
}

func newLimitListener(l net.Listener, most int) *limitListener {
	return &limitListener{Listener: l, max: most}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open.Len() >= l.max {
		_ = l.open.Remove(l.open.Front()).(net.Conn).Close()
	}
	return &listedConn{Conn: conn, of: l, at: l.open.PushBack(conn)}, nil
}

// listedConn removes itself from the list when it is closed. The list holds the plain connection, so that closing the
// oldest one does not take the listener's lock again.
type listedConn struct {
	net.Conn
	of *limitListener
	at *list.Element
}

// Close implements net.Conn.
func (c *listedConn) Close() error {
	c.of.mu.Lock()
	c.of.open.Remove(c.at) // no effect if it is removed already
	c.of.mu.Unlock()
	return c.Conn.Close()
}
