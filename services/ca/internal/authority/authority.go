// Package authority is what the ca issues with: the signer that is in use, behind its bounds and checks, and the trust
// bundle that goes with each answer. Packages issuance and servercert call Authority.Begin for each request; package
// inuse calls Use.
package authority

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"sync/atomic"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// Issued is a certificate that has passed all checks.
type Issued struct {
	// Certificate is the leaf.
	Certificate *x509.Certificate
	// ChainPEM has the leaf, each intermediate, and last all roots of the trust bundle in one element: Istio's agent
	// takes roots from there only.
	ChainPEM []string
	// Signer is the ID of the signer that issued it.
	Signer uint64
}

// Serial is the serial number in hexadecimal, as the audit log and `openssl x509 -serial` write it.
func (i *Issued) Serial() string { return hex.EncodeToString(i.Certificate.SerialNumber.Bytes()) }

// Bundle is the published trust bundle; *trustbundle.Publisher implements it.
type Bundle interface {
	Current() (*trustbundle.Bundle, <-chan struct{})
}

// Authority issues with one signer at a time. It is safe for concurrent use.
type Authority struct {
	notify.Notifier
	bundle  Bundle
	current atomic.Pointer[used]
	own     *guard.Guard
}

type used struct {
	id    uint64
	guard *guard.Guard
}

// New makes an Authority without a signer.
func New(bundle Bundle) *Authority { return &Authority{bundle: bundle} }

// SetOwn names the signer in this process that signs what the one in use cannot, if Capabilities say IDsOnly of that:
// names, and the ca's own certificate, which no token asks for. It is called before anything is issued.
func (a *Authority) SetOwn(g *guard.Guard) { a.own = g }

// Use makes a signer the one that issues from now on, under an ID that Issued.Signer has. Requests that are with the
// signer before end there. All holders must verify with its roots already.
func (a *Authority) Use(id uint64, g *guard.Guard) {
	a.current.Store(&used{id: id, guard: g})
	a.Notify()
}

// ID is that of the signer in use, 0 before the first Use.
func (a *Authority) ID() uint64 {
	if u := a.current.Load(); u != nil {
		return u.id
	}
	return 0
}

// Guard is that of the signer in use, nil before the first Use.
func (a *Authority) Guard() *guard.Guard {
	if u := a.current.Load(); u != nil {
		return u.guard
	}
	return nil
}

// Session is one request's view of the signer: what Bounds says holds for Issue, although a swap comes in between.
type Session struct {
	of     *used
	own    *guard.Guard
	bundle Bundle
}

// Begin begins a request. It returns an error of type *signer.Error while there is no signer.
func (a *Authority) Begin() (Session, error) {
	u := a.current.Load()
	if u == nil {
		return Session{}, signer.Errorf(signer.Away, "the ca has no signer yet; retry later")
	}
	return Session{of: u, own: a.own, bundle: a.bundle}, nil
}

// Capabilities are those of the signer.
func (s Session) Capabilities() signer.Capabilities { return s.of.guard.Capabilities() }

// Bounds says what the signer's certificates allow, for package policy.
func (s Session) Bounds() (policy.Issuer, error) {
	authorities, _ := s.of.guard.Authorities()
	if authorities == nil {
		return policy.Issuer{}, signer.Errorf(signer.Away, "the roots of the signer are not known yet; retry later")
	}
	can := s.of.guard.Capabilities()
	out := policy.Issuer{NotBefore: authorities.NotBefore, NotAfter: authorities.NotAfter, NeedsToken: can.Token || !can.Extensions}
	if can.IDsOnly && s.own != nil {
		if own, _ := s.own.Authorities(); out.NotAfter.IsZero() || own.NotAfter.Before(out.NotAfter) {
			out.NotAfter = own.NotAfter
		}
	}
	return out, nil
}

// Issue has the signer sign the leaf, and checks it. Errors are of type *signer.Error.
func (s Session) Issue(ctx context.Context, r *signer.Request) (*Issued, error) {
	by := s.of.guard
	if t := r.Template; s.own != nil && by.Capabilities().IDsOnly && (r.Token == "" || len(t.DNSNames)+len(t.IPAddresses) > 0) {
		by = s.own
	}
	chain, err := by.Issue(ctx, r)
	if err != nil {
		return nil, err
	}
	bundle, _ := s.bundle.Current()
	if bundle == nil {
		return nil, signer.Errorf(signer.Away, "no trust bundle is published yet; retry later")
	}
	out := &Issued{Certificate: chain[0], ChainPEM: make([]string, 0, len(chain)+1), Signer: s.of.id}
	for _, c := range chain {
		out.ChainPEM = append(out.ChainPEM, tlsconf.EncodeCertificate(c))
	}
	out.ChainPEM = append(out.ChainPEM, bundle.PEM)
	return out, nil
}
