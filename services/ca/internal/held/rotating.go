package held

import (
	"context"
	"crypto/x509"
	"sync/atomic"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/signer"
)

// Rotating issues with a Signer that is replaced while it issues. Package cacerts and others whose authority is renewed
// have one. The zero value has no Signer yet. It is safe for concurrent use.
type Rotating struct {
	changed notify.Notifier
	current atomic.Pointer[generation]
}

// generation is a Signer with the one before, which is nil at first.
type generation struct{ now, before *Signer }

// Set makes s the Signer. One goroutine at a time calls it.
func (r *Rotating) Set(s *Signer) {
	next := &generation{now: s}
	if g := r.current.Load(); g != nil {
		next.before = g.now
	}
	r.current.Store(next)
	r.changed.Notify()
}

// Current is the Signer, nil before the first Set.
func (r *Rotating) Current() *Signer {
	if g := r.current.Load(); g != nil {
		return g.now
	}
	return nil
}

// Authorities has the results of signer.Issuer's Authorities.
func (r *Rotating) Authorities() (*signer.Authorities, <-chan struct{}) {
	changed := r.changed.Changed()
	if s := r.Current(); s != nil {
		return &s.authorities, changed
	}
	return nil, changed
}

// Issue does what signer.Issuer's Issue does; without a Signer it returns ErrNoSigner. A template that was made for the
// validity of the Signer before, and does not fit the new one, is signed by the one before: its request began earlier.
func (r *Rotating) Issue(ctx context.Context, req *signer.Request) ([]*x509.Certificate, error) {
	g := r.current.Load()
	switch {
	case g == nil:
		return nil, ErrNoSigner
	case g.before != nil && !g.now.Fits(req.Template) && g.before.Fits(req.Template):
		return g.before.Issue(ctx, req)
	}
	return g.now.Issue(ctx, req)
}
