// Package authn adds to pkg/auth what the ca asks of its callers beyond the rest of Fairlead: a certificate that is still valid at the moment of the call,
// and a record of every caller that could not be authenticated.
package authn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
)

// Clock is the part of a clock that is needed here.
type Clock interface{ Now() time.Time }

// ErrExpired means that the connection was made with a certificate that has expired since.
var ErrExpired = errors.New("the client certificate has expired since this connection was made; authenticate with a token on a new connection")

// StillValid lets through only callers of next whose client certificate, if they have one, is valid now. TLS checks it once, in the handshake, and a
// connection may outlive it; without this an expired identity could renew itself for as long as it keeps its connection.
func StillValid(next auth.Authenticator, clock Clock) auth.Authenticator {
	return stillValid{next: next, clock: clock}
}

type stillValid struct {
	next  auth.Authenticator
	clock Clock
}

func (s stillValid) Authenticate(ctx context.Context) (auth.Peer, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			leaf, now := info.State.PeerCertificates[0], s.clock.Now()
			if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
				return auth.Peer{}, ErrExpired
			}
		}
	}
	return s.next.Authenticate(ctx)
}

// Recorded counts and logs the callers that next refuses.
func Recorded(next auth.Authenticator, log *slog.Logger, count func(), clock Clock) auth.Authenticator {
	return &recorded{next: next, log: log, count: count, clock: clock, lines: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// Anybody who reaches the port can fail to authenticate, so the log is limited; the counter is not.
const (
	linesPerSecond = 10
	linesAtOnce    = 50
)

type recorded struct {
	next  auth.Authenticator
	log   *slog.Logger
	count func()
	clock Clock
	lines *rate.Limiter
}

func (r *recorded) Authenticate(ctx context.Context) (auth.Peer, error) {
	who, err := r.next.Authenticate(ctx)
	if err == nil {
		return who, nil
	}
	r.count()
	if r.lines.AllowN(r.clock.Now(), 1) {
		address := ""
		if p, ok := peer.FromContext(ctx); ok {
			address = p.Addr.String()
		}
		r.log.InfoContext(ctx, "audit", "decision", "refused", "reason", "unauthenticated", "address", address, "detail", err.Error())
	}
	return auth.Peer{}, err
}
