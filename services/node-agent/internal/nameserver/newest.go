package nameserver

import (
	"container/list"
	"net"
	"sync"
)

// newestListener keeps so many connections open at most, the newest ones: a client that holds many and says nothing
// shuts nobody out.
type newestListener struct {
	net.Listener
	max int

	mu   sync.Mutex
	open list.List // of net.Conn, oldest first
}

func newest(l net.Listener, most int) *newestListener { return &newestListener{Listener: l, max: most} }

// Accept implements net.Listener.
func (l *newestListener) Accept() (net.Conn, error) {
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

// listedConn takes itself off the list when it is closed. The list has the connection without it, so that the
// listener's lock is not taken twice.
type listedConn struct {
	net.Conn
	of *newestListener
	at *list.Element
}

// Close implements net.Conn.
func (c *listedConn) Close() error {
	c.of.mu.Lock()
	c.of.open.Remove(c.at) // nothing, where it is off the list already
	c.of.mu.Unlock()
	return c.Conn.Close()
}
