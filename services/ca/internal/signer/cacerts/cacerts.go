// Package cacerts signs with a plugged-in CA as Istio's users have it: a directory with certificate, key, chain and
// roots, which a Secret is mounted at. The files have the names of Istio's Secrets cacerts and istio-ca-secret
// (ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem), or those of a TLS Secret as cert-manager writes it
// (tls.crt, tls.key, ca.crt); ca-crl.pem has lists of revoked certificates. With the Secret of an istiod, workloads of
// that istiod and of this ca trust each other.
//
// The directory is followed while the ca runs. A set of files is used only if it is whole and the mesh can use it;
// until there is one, the last good set serves, and Problem says what to do.
// docs/reference/plugged-in-ca-differences.md lists which directories istiod takes and this package does not, or the
// other way round.
package cacerts

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// interval is how often the files are read without a notification, and soon while something is wrong with them.
	interval = 30 * time.Second
	soon     = time.Second
	// debounce is how long files that are replaced one by one must not have changed before they are read.
	debounce = 200 * time.Millisecond
)

// ErrRootNotTrusted is in the error of Problem while a set waits until the mesh trusts its root.
var ErrRootNotTrusted = errors.New("the mesh does not trust the root of the new certificate yet")

// Mesh is what the ca knows of the mesh beside its trust domain.
type Mesh struct {
	// DNS and IPs are the names of leaves beside SPIFFE IDs; the CA's name constraints must permit them.
	DNS []string
	IPs []net.IP
	// Trusted reports whether every verifier of the mesh has the root. A set that replaces another one is used once a
	// root of its certificate is; until then Authorities has the new roots beside the old ones. If Trusted is nil, a
	// root is trusted if the set before had it in its roots.
	Trusted func(root *x509.Certificate) bool
}

// Issuer is a signer.Issuer.
type Issuer struct {
	cfg      Config
	deps     signer.Deps
	mesh     Mesh
	rotating held.Rotating

	// Only Run uses these.
	current *plugged
	// pending are roots of a set that waits for them, which are announced.
	pending []*x509.Certificate
	// crl has the last good lists.
	crl []byte

	mu      sync.Mutex
	problem error
}

var _ signer.Issuer = (*Issuer)(nil)

// New makes an Issuer that has read nothing yet; Run reads.
func New(cfg Config, d signer.Deps, m Mesh) (*Issuer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	d.Clock = clock.Or(d.Clock)
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	return &Issuer{cfg: cfg, deps: d, mesh: m}, nil
}

// Issue implements signer.Issuer.
func (i *Issuer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	return i.rotating.Issue(ctx, r)
}

// Authorities implements signer.Issuer.
func (i *Issuer) Authorities() (*signer.Authorities, <-chan struct{}) {
	return i.rotating.Authorities()
}

// Capabilities implements signer.Issuer.
func (*Issuer) Capabilities() signer.Capabilities {
	c := held.Capabilities()
	c.Revocation = true
	return c
}

// Problem returns what is wrong with the files, also while an older set is in use: why the set is refused, why lists of
// revoked certificates are not used, and what expires soon. It is nil if nothing is, and before Run has read them.
func (i *Issuer) Problem() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.problem
}

// Run implements signer.Issuer. Mistakes in the files do not end it.
func (i *Issuer) Run(ctx context.Context) error {
	paths := lists.Map([]string{
		istioLayout.cert, istioLayout.key, istioLayout.chain, istioLayout.roots, tlsLayout.cert, tlsLayout.key, tlsLayout.roots, crlName,
	}, func(name string) string { return filepath.Join(i.cfg.Directory, name) })
	filewatch.Follower{
		Files: func() []string { return paths }, Read: i.reload, Debounce: debounce, Clock: i.deps.Clock, Log: i.deps.Log,
	}.Run(ctx)
	return nil
}

// reload reads the files and uses what is good in them. It returns when to read again.
func (i *Issuer) reload() time.Duration {
	now := i.deps.Clock.Now()
	f, setErr := read(i.cfg.Directory)
	var next *plugged
	if setErr == nil {
		next, setErr = i.usable(f, now)
	}
	switch {
	case setErr != nil:
	case i.trusted(next):
		i.current, i.pending = next, nil
	default:
		i.pending = next.Roots
		setErr = fmt.Errorf("%s: %w; the set before signs until then. If this lasts, add the new root to %s beside the old one first, and "+
			"replace certificate and key when all workloads have it", next.where[next.Certificate], ErrRootNotTrusted,
			filepath.Join(i.cfg.Directory, f.layout.roots))
	}
	var crlErr, expiring error
	if i.current != nil {
		a := i.current.Authority
		for _, root := range i.pending {
			if !slices.ContainsFunc(a.Roots, root.Equal) {
				a.Roots = append(slices.Clip(a.Roots), root)
			}
		}
		a.CRLs, crlErr = i.revoked(f, now)
		i.serve(a)
		for _, u := range i.current.Expiring(now) {
			expiring = errors.Join(expiring, i.current.describe(u))
		}
	}
	i.report(errors.Join(setErr, crlErr, expiring))
	if setErr != nil {
		return soon
	}
	return interval
}

// usable parses a set and returns it if the mesh can use it.
func (i *Issuer) usable(f *files, now time.Time) (*plugged, error) {
	p, err := parse(i.cfg.Directory, f, now)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, u := range p.Unsuited(held.Names{TrustDomain: i.deps.TrustDomain, DNS: i.mesh.DNS, IPs: i.mesh.IPs}, now) {
		errs = append(errs, p.describe(u))
	}
	return p, errors.Join(errs...)
}

// describe writes before a reason where its certificate was found.
func (p *plugged) describe(u *held.Unsuitable) error {
	return fmt.Errorf("%s: %w", p.where[u.Certificate], u)
}

// trusted reports whether the mesh verifies what a set signs.
func (i *Issuer) trusted(next *plugged) bool {
	if i.current == nil {
		return true // the ca announces the roots of its first set before it uses the signer
	}
	path := i.current.Path()
	a := next.Authority
	a.Roots = nil
	for _, root := range slices.Concat(i.current.Roots, next.Roots) {
		switch {
		case root.Equal(path[len(path)-1]): // what is signed now ends there
		case i.mesh.Trusted == nil && slices.ContainsFunc(i.current.Roots, root.Equal):
		case i.mesh.Trusted != nil && i.mesh.Trusted(root):
		default:
			continue
		}
		a.Roots = append(a.Roots, root)
	}
	return a.Path() != nil
}

// revoked returns the lists of revoked certificates of the current set, and what is wrong with the file. If it cannot
// be used, the last good lists stay for as long as they are valid.
func (i *Issuer) revoked(f *files, now time.Time) ([][]byte, error) {
	switch {
	case f.unread && i.crl == nil: // nobody knows of lists
		return nil, nil
	case f.unread:
		lists, _, err := revocations(i.crl, &i.current.Authority, now)
		return lists, err
	case f.crl == nil && f.crlErr == nil:
		i.crl = nil
		return nil, nil
	}
	err := f.crlErr
	if err == nil {
		path := filepath.Join(i.cfg.Directory, crlName)
		lists, doubts, wrong := revocations(f.crl, &i.current.Authority, now)
		switch {
		case wrong != nil:
			err = fmt.Errorf("%s: %w", path, wrong)
		case doubts != nil:
			i.crl = f.crl
			return lists, fmt.Errorf("%s: %w", path, doubts)
		default:
			i.crl = f.crl
			return lists, nil
		}
	}
	if i.crl != nil {
		if lists, _, wrong := revocations(i.crl, &i.current.Authority, now); wrong == nil {
			return lists, fmt.Errorf("%w (the last good lists stay)", err)
		}
	}
	return nil, fmt.Errorf("%w (certificates are not checked for revocation until then)", err)
}

// serve signs with the authority from now on, unless it does already.
func (i *Issuer) serve(a held.Authority) {
	s, err := held.NewIssuer(a)
	if err != nil { // parse and Unsuited have seen to it
		i.deps.Log.Error("plugged-in CA cannot sign", "error", err)
		return
	}
	valid, _ := s.Authorities()
	if before, _ := i.rotating.Authorities(); valid.Equal(before) && s.Issuer().Equal(i.rotating.Current().Issuer()) {
		return
	}
	i.rotating.Set(s)
	i.deps.Log.Info("signing with the plugged-in CA", "certificate", a.Certificate.Subject.String(), "serial",
		a.Certificate.SerialNumber.Text(16), "not_after", valid.NotAfter, "intermediates", len(valid.Intermediates), "roots", len(a.Roots),
		"crls", len(a.CRLs))
	for _, note := range i.current.notes {
		i.deps.Log.Warn("part of the plugged-in CA is not used", "reason", note)
	}
}

// report keeps the problem, and logs one that is new.
func (i *Issuer) report(err error) {
	i.mu.Lock()
	before := i.problem
	i.problem = err
	i.mu.Unlock()
	switch {
	case text(err) == text(before):
	case err == nil:
		i.deps.Log.Info("files of the plugged-in CA are in order again")
	default:
		i.deps.Log.Warn("files of the plugged-in CA cannot be used as they are", "error", err, "last_good_in_use", i.current != nil)
	}
}
