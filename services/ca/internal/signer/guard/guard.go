// Package guard bounds what one signer may cost the ca: how many requests it works on, how long each may take, and how
// often a signer that fails is asked again. Guard.Issue is what packages issuance and servercert call: it asks the
// signer, checks the answer, and holds none of the ca's workers while it waits.
package guard

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/services/ca/internal/signer"
)

// Config bounds the calls of one signer. Zero values have the defaults below.
type Config struct {
	// InFlight is how many requests the signer works on at once, Waiting how many more wait for that.
	InFlight, Waiting int
	// Patience is how long a request waits for its turn, Timeout how long the signer may then take.
	Patience, Timeout time.Duration
	Clock             clock.Clock
}

// Defaults of a Config. An agent gives up after 10 s, and asks again.
const (
	DefaultInFlight = 64
	DefaultWaiting  = 1024
	DefaultPatience = 5 * time.Second
	DefaultTimeout  = 5 * time.Second
)

// Guard is one signer with its bounds. It is safe for concurrent use.
type Guard struct {
	cfg     Config
	issuer  signer.Issuer
	can     signer.Capabilities
	pool    *fairshare.Pool
	breaker breaker
	roots   roots
}

// New makes the Guard of an issuer.
func New(issuer signer.Issuer, cfg Config) *Guard {
	cfg.InFlight, cfg.Waiting = cmp.Or(cfg.InFlight, DefaultInFlight), cmp.Or(cfg.Waiting, DefaultWaiting)
	cfg.Patience, cfg.Timeout = cmp.Or(cfg.Patience, DefaultPatience), cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Clock = clock.Or(cfg.Clock)
	return &Guard{cfg: cfg, issuer: issuer, can: issuer.Capabilities(), pool: fairshare.New(fairshare.Config{
		Places: cfg.InFlight, Waiting: cfg.Waiting, WaitingPolicy: fairshare.Newest, Patience: cfg.Patience, Clock: cfg.Clock,
	})}
}

// Capabilities are those of the signer.
func (g *Guard) Capabilities() signer.Capabilities { return g.can }

// Authorities are those of the signer.
func (g *Guard) Authorities() (*signer.Authorities, <-chan struct{}) { return g.issuer.Authorities() }

// Signer is the signer itself, without bounds: to try it before anybody depends on it.
func (g *Guard) Signer() signer.Issuer { return g.issuer }

// Run follows the signer until ctx ends.
func (g *Guard) Run(ctx context.Context) error { return g.issuer.Run(ctx) }

// State is what a Guard knows of its signer.
type State struct {
	// InFlight requests are with the signer, Waiting wait for that.
	InFlight, Waiting int
	// Open is true while the signer is not asked, because it has failed several times in a row.
	Open bool
	// Failures in a row, and the last of them.
	Failures int
	Last     error
}

// State returns the state now.
func (g *Guard) State() State {
	load := g.pool.Load()
	open, failures, last := g.breaker.state(g.cfg.Clock.Now())
	return State{InFlight: load.Held, Waiting: load.Waiting, Open: open, Failures: failures, Last: last}
}

// Issue asks the signer for the leaf of a request and checks the chain that comes back, which it returns with the leaf
// first and without the root. Requests of one identity take turns with those of others. Errors are of type
// *signer.Error.
func (g *Guard) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	if err := unsuitable(g.can, r); err != nil {
		return nil, err
	}
	if !g.can.Remote {
		return g.ask(ctx, r)
	}
	if wait, last := g.breaker.wait(g.cfg.Clock.Now()); wait > 0 {
		e := signer.Errorf(signer.Away, "the signer has failed several times and is asked again in %s; its last error: %w",
			wait.Round(time.Millisecond), last)
		e.RetryAfter = wait
		return nil, e
	}
	place, err := g.pool.Take(r.Identity.String(), 0, nil)
	if err == nil {
		err = place.Wait(ctx)
	}
	if err != nil {
		return nil, g.busy(ctx, err)
	}
	defer place.Release()
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Timeout, fmt.Errorf("the signer did not answer within %s", g.cfg.Timeout))
	defer cancel()
	chain, err := g.ask(ctx, r)
	g.breaker.note(ctx, err, g.cfg.Clock.Now())
	return chain, err
}

func (g *Guard) busy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return signer.Errorf(signer.Away, "the caller gave up while it waited for its turn at the signer: %w", context.Cause(ctx))
	}
	var full *fairshare.FullError
	if errors.As(err, &full) || errors.Is(err, fairshare.ErrDisplaced) || errors.Is(err, fairshare.ErrPatience) {
		e := signer.Errorf(signer.Busy, "the signer works on %d requests, and too many wait for it: %w; retry later", g.cfg.InFlight, err)
		e.RetryAfter = g.cfg.Patience
		return e
	}
	return signer.Errorf(signer.Busy, "%w", err)
}

// ask asks the signer and checks what it answers.
func (g *Guard) ask(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	authorities, _ := g.issuer.Authorities()
	if authorities == nil {
		return nil, signer.Errorf(signer.Away, "the roots of the signer are not known yet; retry later")
	}
	chain, err := g.issuer.Issue(ctx, r)
	if err != nil {
		if known, ok := errors.AsType[*signer.Error](err); ok {
			return nil, known
		}
		if ctx.Err() != nil {
			return nil, signer.Errorf(signer.Away, "%w", context.Cause(ctx))
		}
		return nil, signer.Errorf(signer.Away, "%w", err)
	}
	chain = withoutRoots(chain)
	if !g.can.Remote {
		return chain, nil // held.Signer checks its templates, and crypto/x509 the signature
	}
	// The signer may have changed its roots meanwhile.
	now, _ := g.issuer.Authorities()
	if err := signer.Check(r, g.can, chain, g.roots.pool(now), g.cfg.Clock.Now()); err != nil {
		return nil, err
	}
	return chain, nil
}

// unsuitable says what a request needs and the signer cannot do.
func unsuitable(can signer.Capabilities, r *signer.Request) error {
	switch {
	case can.Token && r.Token == "":
		return signer.Errorf(signer.Unsuitable, "the mesh's signer needs the workload's token with each request, "+
			"and a certificate authenticated this one; send a token")
	case !can.NamesBesideCSR && len(r.CSR) == 0:
		return signer.Errorf(signer.Unsuitable, "the mesh's signer takes a certificate request as it is, and there is none")
	}
	if can.NamesBesideCSR || len(r.CSR) == 0 {
		return nil
	}
	csr, err := x509.ParseCertificateRequest(r.CSR)
	if err != nil {
		return signer.Errorf(signer.Unsuitable, "certificate request: %w", err)
	}
	// A URI may be that of a trust domain that the mesh has had before, which package policy lets pass.
	same := func(a, b *url.URL) bool { return a.String() == b.String() }
	if !slices.EqualFunc(csr.URIs, r.Template.URIs, same) || len(csr.DNSNames) != len(r.Template.DNSNames) ||
		len(csr.IPAddresses) != len(r.Template.IPAddresses) {
		return signer.Errorf(signer.Unsuitable, "the mesh's signer takes the names from the certificate request alone; "+
			"send one that has exactly the URIs %v, the DNS names %q and the IP addresses %v", r.Template.URIs, r.Template.DNSNames,
			r.Template.IPAddresses)
	}
	return nil
}

// withoutRoots leaves out what signs itself behind the leaf: the bundle is sent apart.
func withoutRoots(chain []*x509.Certificate) []*x509.Certificate {
	out := make([]*x509.Certificate, 0, len(chain))
	for i, c := range chain {
		if i == 0 || string(c.RawIssuer) != string(c.RawSubject) {
			out = append(out, c)
		}
	}
	return out
}
