package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/notify"
)

// Limits of connections. Consul admits 200 connections of an address (limits.http_max_conns_per_client), and answers
// 429 beyond, and 250 streams an HTTP/2 connection.
const (
	streamsPerConn = 200
	maxConns       = 60
	// Without HTTP/2 a connection has one request: so many are watches, and a few are left for single readings.
	plainWatches  = 150
	plainReads    = 17
	reservedReads = 100
	// maxDials bounds the connections that are opened at once.
	maxDials = 4
)

// transport makes requests.
type transport interface {
	http.RoundTripper
	// watches is how many requests may wait for changes at once. It is known after the first answer.
	watches() int
	close()
}

// pool is the transport of a Consul agent or server: HTTP/2 where TLS agrees on it, else HTTP/1.1.
type pool struct {
	scheme, host string
	dialer       *http.Transport

	freed notify.Notifier
	mu    sync.Mutex
	conns []*conn
	dials int
	plain bool
	known bool
	ended bool
}

type conn struct {
	client         *http.ClientConn
	used, capacity int
}

var errPoolClosed = errors.New("the connection has been exchanged")

func newPool(cfg *Config, u *url.URL) *pool {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	p := &pool{scheme: u.Scheme, host: u.Host, plain: u.Scheme == "http"}
	p.dialer = &http.Transport{
		DialContext: cfg.DialContext, TLSHandshakeTimeout: fetch.DialTimeout, DisableCompression: true, Protocols: protocols,
		MaxResponseHeaderBytes: 64 << 10,
		// Pings tell a server that is gone from one that has nothing to say.
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second,
			MaxReceiveBufferPerConnection: 3 << 20, MaxReceiveBufferPerStream: 1 << 20,
		},
	}
	if cfg.TLS != nil {
		p.dialer.TLSClientConfig = cfg.TLS.Clone()
	}
	return p
}

// RoundTrip implements http.RoundTripper. It waits for a free place; the place is free again when the body is closed.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := p.take(r.Context())
	if err != nil {
		return nil, err
	}
	resp, err := c.client.RoundTrip(r)
	if err != nil {
		p.release(c)
		return nil, err
	}
	resp.Body = &body{resp.Body, sync.OnceFunc(func() { p.release(c) })}
	return resp, nil
}

func (p *pool) take(ctx context.Context) (*conn, error) {
	for {
		changed := p.freed.Changed()
		c, dial, err := p.free()
		if err != nil || c != nil {
			return c, err
		}
		if dial {
			if err := p.dial(ctx); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("no connection is free: %w", ctx.Err())
		}
	}
}

// free takes a place of a connection, or says that the caller may open one.
func (p *pool) free() (c *conn, dial bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil, false, errPoolClosed
	}
	p.conns = slices.DeleteFunc(p.conns, func(c *conn) bool {
		return c.client.Err() != nil || c.used == 0 && c.client.Available() == 0
	})
	for _, c := range p.conns {
		if c.used < c.capacity && c.client.Available() > 0 {
			c.used++
			return c, false, nil
		}
	}
	limit, dials := maxConns, maxDials
	if p.plain {
		limit = plainWatches + plainReads
	}
	if !p.known {
		dials = 1
	}
	if len(p.conns)+p.dials < limit && p.dials < dials {
		p.dials++
		return nil, true, nil
	}
	return nil, false, nil
}

func (p *pool) dial(ctx context.Context) error {
	client, err := p.dialer.NewClientConn(ctx, p.scheme, p.host)
	if err == nil {
		p.settle(ctx, client)
	}
	p.mu.Lock()
	p.dials--
	ended := p.ended
	if err == nil && !ended {
		c := &conn{client: client, capacity: streamsPerConn}
		if p.known, p.plain = true, client.Available() == 1; p.plain {
			c.capacity = 1
		}
		p.conns = append(p.conns, c)
	}
	p.mu.Unlock()
	defer p.freed.Notify()
	if err != nil {
		return err
	}
	if ended {
		client.Close()
		return errPoolClosed
	}
	return nil
}

// settleWithin is how long a new connection of HTTP/2 waits for the server to say how many streams it admits.
const settleWithin = 100 * time.Millisecond

// settle waits until the server has said how many streams it admits: until then a connection admits few.
func (p *pool) settle(ctx context.Context, client *http.ClientConn) {
	told := make(chan struct{}, 1)
	client.SetStateHook(func(*http.ClientConn) {
		notify.Wake(told)
		p.freed.Notify()
	})
	if n := client.Available(); n == 1 || n >= streamsPerConn {
		return
	}
	t := time.NewTimer(settleWithin)
	defer t.Stop()
	select {
	case <-told:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *pool) release(c *conn) {
	p.mu.Lock()
	c.used--
	p.mu.Unlock()
	p.freed.Notify()
}

// watches implements transport.
func (p *pool) watches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plain {
		return plainWatches
	}
	return maxConns*streamsPerConn - reservedReads
}

// close implements transport. It interrupts what is under way.
func (p *pool) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.ended = nil, true
	p.mu.Unlock()
	for _, c := range conns {
		c.client.Close()
	}
	p.freed.Notify()
}

// body is the body of an answer, which gives back its place.
type body struct {
	io.ReadCloser
	release func()
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
