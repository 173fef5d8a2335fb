// Package authn adds to pkg/auth what the ca keeps beyond the rest of Fairlead: a record of every caller that could not
// be authenticated.
package authn

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
)

// Clock is the part of a clock that is needed here.
type Clock interface{ Now() time.Time }

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
