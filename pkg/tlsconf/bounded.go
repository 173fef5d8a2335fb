package tlsconf

import (
	"fmt"
	"net"
)

// MaxHandshakeBytes is how much a client may send before its TLS handshake is complete. crypto/tls itself holds up to
// 256 KiB of an unfinished certificate message. A hello and a workload's certificate chain have less than 8 KiB, each
// intermediate certificate a KiB or two more. It is also more than a TLS record, which has 16 KiB.
const MaxHandshakeBytes = 32 << 10

// BoundedConn is the connection below a server's TLS. Read fails once it has returned the bound's number of bytes since
// the last Renew, unless Unbind was called. One goroutine at a time calls these methods.
type BoundedConn struct {
	net.Conn
	bound, left int
	unbound     bool
}

// Bound returns the connection that a server hands to TLS in place of raw.
func Bound(raw net.Conn, bytes int) *BoundedConn {
	return &BoundedConn{Conn: raw, bound: bytes, left: bytes}
}

// Renew lets TLS read as many bytes again. A server that calls it before each Read from TLS also bounds handshake
// messages that come after the handshake: one Read needs no more than one record of data.
func (c *BoundedConn) Renew() { c.left = c.bound }

// Unbind ends the bound. A server that cannot call Renew calls it after the handshake, more than once if need be.
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
