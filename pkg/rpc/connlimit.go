package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
)

// maxRefusedCalls is how many refused calls one connection may make before it is closed.
const maxRefusedCalls = 100

// connLimit wraps a server's transport security: it counts connections, refuses those above the limit and those of foreign users,
// and ties to each the number of calls it had refused.
type connLimit struct {
	credentials.TransportCredentials
	max     int64
	uids    []uint32
	open    *atomic.Int64
	log     *slog.Logger
	logRate *rate.Limiter
	metrics *serverMetrics
}

func newConnLimit(cfg *ServerConfig, m *serverMetrics) *connLimit {
	return &connLimit{
		TransportCredentials: cfg.transport(), max: int64(cfg.MaxConnections), uids: cfg.PeerUIDs, open: new(atomic.Int64),
		log: cfg.Log, logRate: newLogRate(), metrics: m,
	}
}

var errTooManyConnections = errors.New("too many connections")

func (l *connLimit) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if len(l.uids) > 0 {
		if err := checkPeerUID(raw, l.uids); err != nil {
			return l.reject(raw, "peer", err)
		}
	}
	if l.open.Add(1) > l.max {
		l.open.Add(-1)
		return l.reject(raw, "limit", errTooManyConnections)
	}
	conn, info, err := l.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		l.open.Add(-1)
		return l.reject(raw, "handshake", err)
	}
	return &countedConn{Conn: conn, raw: raw, limit: l}, info, nil
}

func (l *connLimit) reject(raw net.Conn, reason string, err error) (net.Conn, credentials.AuthInfo, error) {
	l.metrics.rejected.WithLabelValues(reason).Inc()
	// A probe that connects and leaves is no failed handshake worth a line.
	if !errors.Is(err, io.EOF) && l.logRate.Allow() {
		l.log.Warn("connection rejected", "reason", reason, "address", raw.RemoteAddr().String(), "error", err)
	}
	_ = raw.Close()
	return nil, nil, err
}

// Clone shares the count: the limit is the server's.
func (l *connLimit) Clone() credentials.TransportCredentials {
	c := *l
	c.TransportCredentials = l.TransportCredentials.Clone()
	return &c
}

type countedConn struct {
	net.Conn
	raw     net.Conn
	limit   *connLimit
	refused atomic.Int32
	once    sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.limit.open.Add(-1) })
	return c.Conn.Close()
}

// refusedCall closes the connection of a caller who keeps being refused. It is called on the goroutine that reads the connection.
func (c *countedConn) refusedCall() {
	if c.refused.Add(1) == maxRefusedCalls {
		c.limit.metrics.rejected.WithLabelValues("refusals").Inc()
		_ = c.raw.Close()
	}
}

// RemoteAddr carries the connection, so that the tap, which sees only the peer's address, finds it.
func (c *countedConn) RemoteAddr() net.Addr { return connAddr{Addr: c.Conn.RemoteAddr(), conn: c} }

type connAddr struct {
	net.Addr
	conn *countedConn
}

// connContext gives every connection a context that ends with it. grpc-go leaves the deadline timer of a call that a tap refuses
// running; as a child of this context it ends with the connection at the latest.
type connContext struct{}

type connCancelKey struct{}

func (connContext) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, connCancelKey{}, cancel)
}

func (connContext) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		if cancel, ok := ctx.Value(connCancelKey{}).(context.CancelFunc); ok {
			cancel()
		}
	}
}

func (connContext) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (connContext) HandleRPC(context.Context, stats.RPCStats)                       {}

func uidAllowed(uid uint32, allowed []uint32) bool { return slices.Contains(allowed, uid) }
