package tlsconf

import (
	"fmt"
	"net"
)

// MaxHandshakeBytes is how much a client may send before its TLS handshake is complete; crypto/tls itself buffers up to
// 256 KiB of an unfinished certificate message. A hello and a workload's certificate chain have less than 8 KiB, and
// each intermediate certificate adds one or two. The bound is above the size of a TLS record, 16 KiB.
const MaxHandshakeBytes = 32 << 10

// BoundedConn is the connection below a server's TLS. Read fails once it has returned the bound's number of bytes since
// the last Renew, unless Unbind was called. One goroutine at a time calls these methods.
type BoundedConn struct {
	net.Conn
	bound, left int
	unbound     bool
}

// Bound returns the connection that a server passes to TLS instead of raw.
func Bound(raw net.Conn, bytes int) *BoundedConn {
	return &BoundedConn{Conn: raw, bound: bytes, left: bytes}
}

// Renew allows another bound of bytes. A server that calls it before each Read from TLS also bounds handshake messages
// after the handshake, because one Read needs no more than one record of data.
func (c *BoundedConn) Renew() { c.left = c.bound }

// Unbind removes the bound. A server that cannot call Renew calls it after the handshake; it may call it again.
func (c *BoundedConn) Unbind() {
	if !c.unbound { // a second call may come while another goroutine reads
		c.unbound = true
	}
}

// Read implements net.Conn.
func (c *BoundedConn) Read(p []byte) (int, error) {
	if c.unbound {
		return c.Conn.Read(p)
	}
	if c.left == 0 && len(p) > 0 {
		return 0, fmt.Errorf("TLS handshake messages of more than %d bytes", c.bound)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
