package rpc

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"

	"fairlead.dev/pkg/origin"
	"fairlead.dev/pkg/tlsconf"
)

// connLimit wraps a server's transport security. It refuses connections above the limits and those of other users, and
// gives gRPC connections (conn) that know their identity and measure what they make the server hold.
type connLimit struct {
	credentials.TransportCredentials
	// identities is true if callers need an identity.
	identities bool
	uids       []uint32
	tracker    *connTracker
	log        *slog.Logger
	logRate    *rate.Limiter
	metrics    *serverMetrics
}

func newConnLimit(cfg *ServerConfig, m *serverMetrics) *connLimit {
	return &connLimit{
		TransportCredentials: cfg.transport(), identities: cfg.Authenticator != nil, uids: cfg.PeerUIDs, tracker: newConnTracker(cfg.limits()),
		log: cfg.Log, logRate: newLogRate(), metrics: m,
	}
}

// ServerHandshake implements credentials.TransportCredentials. gRPC calls it on a goroutine of each new connection, and
// closes the connection if it takes more than 10 s.
func (l *connLimit) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if len(l.uids) > 0 {
		if err := checkPeerUID(raw, l.uids); err != nil {
			return l.reject(raw, "peer", err)
		}
	}
	slot, err := l.tracker.admit(raw)
	if err != nil {
		return l.reject(raw, "address", err)
	}
	if err := l.tracker.countConn(); err != nil {
		slot.Release()
		return l.reject(raw, "limit", err)
	}
	bounded := tlsconf.Bound(raw, tlsconf.MaxHandshakeBytes)
	inner, info, err := l.TransportCredentials.ServerHandshake(bounded)
	if err != nil {
		l.tracker.uncountConn()
		slot.Release()
		if slot.Lost() {
			return l.reject(raw, "address", errTooManyUnauthenticated)
		}
		return l.reject(raw, "handshake", err)
	}
	slot.Spare(slotGuarantee)
	c := newConn(inner, raw, bounded, l, slot)
	if err := l.recognise(c, info); err != nil {
		_ = c.Close()
		return l.reject(raw, "identity", err)
	}
	c.schedule()
	return c, info, nil
}

// recognise identifies a connection by its verified certificate. If callers need no identity, the connection counts for
// its address.
func (l *connLimit) recognise(c *conn, info credentials.AuthInfo) error {
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		leaf := t.State.PeerCertificates[0]
		id, err := x509svid.IDFromCert(leaf)
		if err != nil {
			return nil //nolint:nilerr // the connection stays unauthenticated
		}
		c.expires = leaf.NotAfter.Add(expiryLeeway)
		return c.identify(id.String())
	}
	if !l.identities {
		return c.identify("address " + origin.Of(c.raw.RemoteAddr()))
	}
	return nil
}

func (l *connLimit) reject(raw net.Conn, reason string, err error) (net.Conn, credentials.AuthInfo, error) {
	l.logRejected(raw, reason, "", err)
	_ = raw.Close()
	return nil, nil, err
}

// logRejected counts and logs a connection that the server refuses or closes.
func (l *connLimit) logRejected(raw net.Conn, reason, identity string, err error) {
	l.metrics.rejected.WithLabelValues(reason).Inc()
	// A probe that connects and leaves is no failed handshake worth a line.
	if !errors.Is(err, io.EOF) && l.logRate.Allow() {
		l.log.Warn("connection rejected", "reason", reason, "address", raw.RemoteAddr().String(), "identity", identity, "error", err)
	}
}

// Clone implements credentials.TransportCredentials. The clone shares the counts: the limits are the server's.
func (l *connLimit) Clone() credentials.TransportCredentials {
	c := *l
	c.TransportCredentials = l.TransportCredentials.Clone()
	return &c
}

func uidAllowed(uid uint32, allowed []uint32) bool { return slices.Contains(allowed, uid) }
