// Package authn adds two authenticators to those of pkg/auth, which package app wraps around each other: Audited counts
// and logs every caller that cannot be authenticated, and TokenAfterMaxAge lets a caller show a token when its
// certificate alone no longer renews. TokenTime tells package issuance when the caller last showed a token.
package authn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
)

// Clock is the part of a clock that is needed here.
type Clock interface{ Now() time.Time }

// Audited authenticates with next. For each caller that next rejects it calls count and writes an audit line.
func Audited(next auth.Authenticator, log *slog.Logger, count func(), clock Clock) auth.Authenticator {
	return &audited{next: next, log: log, count: count, clock: clock, lines: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// The audit lines are limited, because anybody who reaches the port can fail to authenticate. Every failure is counted.
const (
	linesPerSecond = 10
	linesAtOnce    = 50
)

// OfCluster are the attributes of an audit line about a token that is refused although a remote cluster has signed it:
// which cluster, and for whom. They are empty for other errors.
func OfCluster(err error) []any {
	of, ok := errors.AsType[*auth.ClusterError](err)
	if !ok {
		return nil
	}
	return []any{"cluster", of.Cluster, "claimed", of.ID.String()}
}

type audited struct {
	next  auth.Authenticator
	log   *slog.Logger
	count func()
	clock Clock
	lines *rate.Limiter
}

func (r *audited) Authenticate(ctx context.Context) (auth.Peer, error) {
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
		r.log.InfoContext(ctx, "audit", append([]any{
			"decision", "refused", "reason", "unauthenticated", "address", address, "detail", err.Error()}, OfCluster(err)...)...)
	}
	return auth.Peer{}, err
}
