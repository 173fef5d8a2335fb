package credential

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
)

// Fetcher gets a token and says when it expires.
type Fetcher interface {
	Fetch(ctx context.Context) (token string, expiry time.Time, err error)
}

// Back-off after a failure, and the shortest time between two tokens.
const (
	firstRetry = time.Second
	maxRetry   = time.Minute
)

// Keeper keeps a valid token in a file. All fields but Clock are required.
type Keeper struct {
	From Fetcher
	// Path is the file, which is made open to its owner only.
	Path  string
	Log   *slog.Logger
	Clock clock.Clock
}

// Run gets a token now and whenever two thirds of its life are over, until ctx ends. While there is no other, the last
// one stays.
func (k Keeper) Run(ctx context.Context) error {
	c := clock.Or(k.Clock)
	retry, said := firstRetry, ""
	for {
		token, expiry, err := k.From.Fetch(ctx)
		if err == nil {
			err = fileio.Replace(k.Path, []byte(token))
		}
		var wait time.Duration
		if ctx.Err() == nil && err != nil {
			wait, retry = retry, min(2*retry, maxRetry)
			if err.Error() != said {
				said = err.Error()
				k.Log.Warn("no token to authenticate to the control plane with", "error", err)
			}
		} else if err == nil {
			wait, retry, said = max(expiry.Sub(c.Now())*2/3, firstRetry), firstRetry, ""
			k.Log.Info("token obtained", "expires", expiry)
		}
		if !clock.Sleep(ctx, c, time.Duration(float64(wait)*(0.9+0.1*rand.Float64()))) {
			return nil
		}
	}
}
