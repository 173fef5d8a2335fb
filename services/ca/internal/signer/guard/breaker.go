package guard

import (
	"context"
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"fairlead.dev/services/ca/internal/signer"
)

const (
	// opensAfter failures in a row the signer is not asked for a while: firstPause, doubled at each further failure up
	// to lastPause. Then one request tries.
	opensAfter = 5
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// breaker counts failures of a signer that is away, so that its callers need not wait for it.
type breaker struct {
	mu       sync.Mutex
	failures int
	last     error
	// until is when the next request may try.
	until time.Time
}

// wait returns for how long the signer is not to be asked, and why. The first request after a pause tries, while others
// are still sent away.
func (b *breaker) wait(now time.Time) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < opensAfter {
		return 0, nil
	}
	if left := b.until.Sub(now); left > 0 {
		return left, b.last
	}
	b.until = now.Add(firstPause)
	return 0, nil
}

// note counts the end of a request. That the caller went away says nothing about the signer; a signer that says no or
// lies has answered.
func (b *breaker) note(ctx context.Context, err error, now time.Time) {
	failed := false
	if known, ok := errors.AsType[*signer.Error](err); ok {
		failed = known.Fault == signer.Away
	}
	if failed && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !failed {
		b.failures, b.last = 0, nil
		return
	}
	b.failures, b.last = b.failures+1, err
	if b.failures >= opensAfter {
		b.until = now.Add(min(firstPause<<min(b.failures-opensAfter, 8), lastPause))
	}
}

func (b *breaker) state(now time.Time) (open bool, failures int, last error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= opensAfter && now.Before(b.until), b.failures, b.last
}

// roots keeps the pool of an Authorities, so that it is made once.
type roots struct {
	mu   sync.Mutex
	of   *signer.Authorities
	made *x509.CertPool
}

func (p *roots) pool(a *signer.Authorities) *x509.CertPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of != a {
		p.of, p.made = a, x509.NewCertPool()
		for _, c := range a.Roots {
			p.made.AddCert(c)
		}
	}
	return p.made
}
