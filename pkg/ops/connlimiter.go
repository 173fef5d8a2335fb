package ops

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"fairlead.dev/pkg/origin"
	"fairlead.dev/pkg/tlsconf"
)

// connLimiter is a listener that bounds its open connections, in all and per address. It accepts every new connection;
// beyond a limit it closes another, preferably one on which no handler runs. So clients that hold connections open,
// idle or in the middle of a request, cannot keep a probe out. HTTP.Serve wraps its listener in it.
type connLimiter struct {
	net.Listener
	max, perAddress int
	// tls is true if the connections are for TLS.
	tls bool
	// onEvict, which may be nil, is called with a connection that is about to be closed to make room for another.
	onEvict func(net.Conn)

	mu   sync.Mutex
	open map[*conn]struct{}
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	limiter *connLimiter
	address string
	// since is when it was opened, or its last request answered. busy is true while a handler runs. Both are guarded by
	// limiter.mu.
	since time.Time
	busy  bool
	// bounded is what TLS reads from; nil without TLS.
	bounded *tlsconf.BoundedConn
}

func newConnLimiter(lis net.Listener, tls bool, onEvict func(net.Conn)) *connLimiter {
	return &connLimiter{Listener: lis, max: maxConnections, perAddress: maxConnectionsPerAddress, tls: tls, onEvict: onEvict,
		open: map[*conn]struct{}{}}
}

// Accept implements net.Listener.
func (l *connLimiter) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, limiter: l, address: origin.Of(raw.RemoteAddr()), since: time.Now()}
	if l.tls {
		c.bounded = tlsconf.Bound(raw, tlsconf.MaxHandshakeBytes+maxHeaderBytes)
		c.Conn = c.bounded
	}
	l.mu.Lock()
	victim := l.victim(c.address)
	if victim != nil {
		delete(l.open, victim)
	}
	l.open[c] = struct{}{}
	l.mu.Unlock()
	if victim != nil {
		if l.onEvict != nil {
			l.onEvict(victim)
		}
		_ = victim.Conn.Close()
	}
	return c, nil
}

// victim returns the connection to close before one more of the newcomer's address is accepted; nil if there is room.
// It is called with mu held.
func (l *connLimiter) victim(newcomer string) *conn {
	count := map[string]int{}
	for c := range l.open {
		count[c.address]++
	}
	from := newcomer
	if count[newcomer] < l.perAddress {
		if len(l.open) < l.max {
			return nil
		}
		for address, n := range count {
			if n > count[from] {
				from = address
			}
		}
	}
	var victim *conn
	for c := range l.open {
		if c.address == from && (victim == nil || c.evictedBefore(victim)) {
			victim = c
		}
	}
	return victim
}

// evictedBefore orders connections for eviction: one without a running handler first, then the oldest.
func (c *conn) evictedBefore(other *conn) bool {
	if c.busy != other.busy {
		return !c.busy
	}
	return c.since.Before(other.since)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	delete(c.limiter.open, c)
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// setBusy is called by HTTP.ServeHTTP before and after it handles a request.
func (c *conn) setBusy(busy bool) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.busy, c.since = busy, time.Now()
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
