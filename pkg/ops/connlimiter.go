package ops

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/pkg/origin"
	"fairlead.dev/pkg/tlsconf"
)

// connLimiter is a listener that bounds its open connections, in all and per address. It accepts every new connection;
// beyond a limit it closes another, preferably one on which no handler runs. So clients that hold connections open,
// idle or in the middle of a request, cannot keep a probe out. HTTP.Serve wraps its listener in it.
type connLimiter struct {
	net.Listener
	open *fairshare.Pool
	// tls is true if the connections are for TLS.
	tls bool
	// onEvict, which may be nil, is called with a connection that is about to be closed to make room for another.
	onEvict func(net.Conn)
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	place *fairshare.Place
	// bounded is what TLS reads from; nil without TLS.
	bounded *tlsconf.BoundedConn
}

func newConnLimiter(lis net.Listener, tls bool, onEvict func(net.Conn)) *connLimiter {
	return &connLimiter{Listener: lis, tls: tls, onEvict: onEvict, open: fairshare.New(fairshare.Config{
		Places: maxConnections, PerOwner: maxConnectionsPerAddress, Policy: fairshare.OldestIdle,
	})}
}

// Accept implements net.Listener.
func (l *connLimiter) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw}
	if l.tls {
		c.bounded = tlsconf.Bound(raw, tlsconf.MaxHandshakeBytes+maxHeaderBytes)
		c.Conn = c.bounded
	}
	// By its Policy there is always a place.
	c.place, err = l.open.Take(origin.Of(raw.RemoteAddr()), 0, func() {
		if l.onEvict != nil {
			l.onEvict(c)
		}
		_ = c.Conn.Close()
	})
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.place.Release()
	return c.Conn.Close()
}

// setState is called by HTTP.ServeHTTP before and after it handles a request.
func (c *conn) setState(state fairshare.State) {
	c.place.Set(state)
	c.place.Renew()
}

// unbindHandshake is the http.Server's ConnState: once a connection is active, its handshake is complete and its first
// request's headers are read.
func unbindHandshake(nc net.Conn, state http.ConnState) {
	t, ok := nc.(*tls.Conn)
	if !ok || state != http.StateActive {
		return
	}
	if c, ok := t.NetConn().(*conn); ok && c.bounded != nil {
		c.bounded.Unbind()
	}
}

type connKey struct{}

// withConn is the http.Server's ConnContext; HTTP.ServeHTTP finds the connection by it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}
