package trustbundle

import (
	"bytes"
	"context"
	"crypto/x509"
	"math/rand/v2"
	"slices"
	"time"

	"fairlead.dev/pkg/tlsconf"
)

// spread is within what time of a taint the certificates of a mesh are renewed. A ca that goes on to issue such ones is
// asked again after twice as long each time, up to maxSpread.
const (
	spread    = 30 * time.Second
	maxSpread = 10 * time.Minute
)

// renewal is when a certificate with a tainted authority is renewed.
type renewal struct {
	// of is the certificate; nil if there is none to renew.
	of *x509.Certificate
	// due is when; zero once it was ordered.
	due time.Time
	// again counts the certificates before it that were tainted, too.
	again int
}

// next is the renewal that follows r when the own certificate is leaf, nil if there is none. random is in [0, 1).
func (r renewal) next(leaf *x509.Certificate, tainted [][]byte, now time.Time, random float64) renewal {
	if leaf == nil || len(leaf.AuthorityKeyId) == 0 ||
		!slices.ContainsFunc(tainted, func(id []byte) bool { return bytes.Equal(id, leaf.AuthorityKeyId) }) {
		return renewal{}
	}
	if r.of != nil && r.of.Equal(leaf) {
		return r
	}
	out := renewal{of: leaf}
	within := spread
	if r.of != nil {
		out.again = r.again + 1
		within = min(spread<<min(out.again, 10), maxSpread)
		random = 0.5 + random/2
	}
	out.due = now.Add(time.Duration(random * float64(within)))
	return out
}

// RenewTainted returns a task that calls renew when the own certificate has a tainted authority, after a random time,
// so that a mesh does not renew at one moment.
func (r *Roots) RenewTainted(own tlsconf.Source, renew func()) func(context.Context) error {
	return func(ctx context.Context) error {
		var plan renewal
		for {
			changed, news := own.Changed(), r.Changed()
			var leaf *x509.Certificate
			if m, err := own.Current(); err == nil && m.Certificate != nil {
				leaf = m.Certificate.Leaf
			}
			before := plan
			plan = plan.next(leaf, r.Tainted(), r.cfg.Clock.Now(), rand.Float64()) //nolint:gosec // spreads load
			var due <-chan time.Time
			if !plan.due.IsZero() {
				wait := plan.due.Sub(r.cfg.Clock.Now())
				if plan.of != before.of {
					r.cfg.Log.Info("the authority of the own certificate is tainted: it is renewed", "in", wait.Round(time.Second).String())
				}
				due = r.cfg.Clock.After(wait)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-news:
			case <-due:
				plan.due = time.Time{}
				renew()
			}
		}
	}
}
