// Package authority is what the ca issues with: the signer that is in use, behind its bounds and checks, and the trust
// bundle that goes with each answer. Packages issuance and servercert call Authority.Begin for each request; package
// driver calls Use.
package authority

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"slices"
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
	// Epoch and Generation are those of the bundle in ChainPEM.
	Epoch, Generation uint64
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
}

type used struct {
	id    uint64
	guard *guard.Guard
	own   *guard.Guard
	// last are the intermediates of the last chain, which are mostly those of the next.
	last atomic.Pointer[intermediates]
}

type intermediates struct {
	certificates []*x509.Certificate
	pem          []string
}

// encoded returns the intermediates of a chain in PEM, which are not to be changed.
func (u *used) encoded(chain []*x509.Certificate) []string {
	if last := u.last.Load(); last != nil && slices.EqualFunc(last.certificates, chain, (*x509.Certificate).Equal) {
		return last.pem
	}
	now := &intermediates{certificates: slices.Clone(chain), pem: make([]string, 0, len(chain))}
	for _, c := range chain {
		now.pem = append(now.pem, tlsconf.EncodeCertificate(c))
	}
	u.last.Store(now)
	return now.pem
}

// New makes an Authority without a signer.
func New(bundle Bundle) *Authority { return &Authority{bundle: bundle} }

// Use makes a signer the one that issues from now on, under an ID that Issued.Signer has. own is a signer in this
// process that signs what the other cannot, because its Capabilities say IDsOnly or leave out NamesBesideCSR: names of
// services, and the ca's own certificate, which no token asks for; nil if there is none. Requests that are with the
// signer before end there. All holders must verify with the roots of both already.
func (a *Authority) Use(id uint64, g, own *guard.Guard) {
	a.current.Store(&used{id: id, guard: g, own: own})
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
	bundle Bundle
}

// Begin begins a request. It returns an error of type *signer.Error while there is no signer.
func (a *Authority) Begin() (Session, error) {
	u := a.current.Load()
	if u == nil {
		return Session{}, signer.Errorf(signer.Away, "the ca has no signer yet; retry later")
	}
	return Session{of: u, bundle: a.bundle}, nil
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
	if s.of.own != nil {
		if own, _ := s.of.own.Authorities(); out.NotAfter.IsZero() || own.NotAfter.Before(out.NotAfter) {
			out.NotAfter = own.NotAfter
		}
	}
	return out, nil
}

// beyond reports whether a signer cannot sign a leaf for its names, so that the ca's own root does: those of services,
// whose requests have their SPIFFE ID alone.
func beyond(can signer.Capabilities, r *signer.Request) bool {
	names := len(r.Template.DNSNames)+len(r.Template.IPAddresses) > 0
	switch {
	case can.IDsOnly:
		return r.Token == "" || names
	case can.NamesBesideCSR || !names:
		return false
	}
	csr, err := x509.ParseCertificateRequest(r.CSR)
	return err != nil || len(csr.DNSNames) != len(r.Template.DNSNames) || len(csr.IPAddresses) != len(r.Template.IPAddresses)
}

// Issue has the signer sign the leaf, and checks it. Errors are of type *signer.Error.
func (s Session) Issue(ctx context.Context, r *signer.Request) (*Issued, error) {
	by := s.of.guard
	if s.of.own != nil && beyond(by.Capabilities(), r) {
		by = s.of.own
	}
	chain, err := by.Issue(ctx, r)
	if err != nil {
		return nil, err
	}
	bundle, _ := s.bundle.Current()
	if bundle == nil {
		return nil, signer.Errorf(signer.Away, "no trust bundle is published yet; retry later")
	}
	out := &Issued{Certificate: chain[0], ChainPEM: make([]string, 0, len(chain)+1), Signer: s.of.id,
		Epoch: bundle.Epoch, Generation: bundle.Generation}
	out.ChainPEM = append(out.ChainPEM, tlsconf.EncodeCertificate(chain[0]))
	out.ChainPEM = append(out.ChainPEM, s.of.encoded(chain[1:])...)
	out.ChainPEM = append(out.ChainPEM, bundle.PEM)
	return out, nil
}
