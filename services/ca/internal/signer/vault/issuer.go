package vault

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/signer"
)

// Issuer has Vault sign each leaf, by a role. It is safe for concurrent use.
type Issuer struct {
	engine *engine
	// wake makes Run look at the issuer at once.
	wake    chan struct{}
	changed notify.Notifier
	// above is the answered chain that was parsed last: it is the same with every leaf until the issuer changes.
	above atomic.Pointer[parsedChain]

	mu      sync.Mutex
	current *signer.Authorities
	role    *role
	problem error
}

type parsedChain struct {
	text string
	// certs have the root last, if Vault knows it.
	certs []*x509.Certificate
}

var _ signer.Issuer = (*Issuer)(nil)

// NewIssuer makes an Issuer; it makes no connection.
func NewIssuer(cfg Config, d signer.Deps) (*Issuer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	e, err := newEngine(cfg, d)
	if err != nil {
		return nil, err
	}
	return &Issuer{engine: e, wake: make(chan struct{}, 1)}, nil
}

// Capabilities implements signer.Issuer. Package comment and Probe say why they are so.
func (i *Issuer) Capabilities() signer.Capabilities {
	return signer.Capabilities{NamesBesideCSR: true, Validity: true, Revocation: i.engine.cfg.CRL, Remote: true}
}

// Authorities implements signer.Issuer.
func (i *Issuer) Authorities() (*signer.Authorities, <-chan struct{}) {
	changed := i.changed.Changed()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.current, changed
}

// Run implements signer.Issuer: it keeps the ca logged in, and looks at the issuer and the role at intervals.
func (i *Issuer) Run(ctx context.Context) error {
	var session sync.WaitGroup
	session.Go(func() { i.engine.session.run(ctx) })
	defer session.Wait()
	said := ""
	for {
		err := i.refresh(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := i.engine.cfg.RefreshInterval.Duration
		if err != nil {
			pause = min(pause, 5*time.Second)
		}
		i.mu.Lock()
		i.problem = err
		i.mu.Unlock()
		if now := errorText(err); now != said {
			if said = now; err != nil {
				i.engine.d.Log.Warn("Vault's issuer or role cannot be used, or not be looked at", "err", err)
			} else {
				i.engine.d.Log.Info("Vault's issuer and role can be used again")
			}
		}
		timer := i.engine.d.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-i.wake:
		}
		timer.Stop()
	}
}

// Problem is what is wrong with the login, the issuer or the role, as Run saw it last; nil if nothing is.
func (i *Issuer) Problem() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.Join(i.engine.session.trouble(), i.problem)
}

// refresh looks at the issuer and the role. What cannot be read stays as it was.
func (i *Issuer) refresh(ctx context.Context) error {
	ctx, cancel := i.engine.bounded(ctx)
	defer cancel()
	// The role comes first: whoever sees the authorities may issue, within max_ttl.
	r, roleErr := i.readRole(ctx)
	if roleErr == nil {
		i.mu.Lock()
		i.role = r
		i.mu.Unlock()
		if r != nil {
			if bad := r.allows(0); bad != nil {
				roleErr = signer.Errorf(signer.Refused, "role %s at Vault: %w", i.engine.cfg.Role, bad)
			}
		}
	}
	a, err := i.engine.look(ctx)
	if err == nil {
		i.announce(a)
	}
	return errors.Join(err, roleErr)
}

// announce tells the ca what the issuer signs with now, if that is new.
func (i *Issuer) announce(a *signer.Authorities) {
	i.mu.Lock()
	known := i.current
	same := known.Equal(a)
	if !same {
		i.current = a
	}
	i.mu.Unlock()
	if same {
		return
	}
	i.changed.Notify()
	i.engine.d.Log.Info("Vault's issuer", "issuer", i.engine.cfg.IssuerRef, "root", a.Roots[0].Subject.String(),
		"intermediates", len(a.Intermediates), "not_after", a.NotAfter, "changed", known != nil)
}

// readRole reads the role. It returns nil if the login may not read it, which policies need not allow.
func (i *Issuer) readRole(ctx context.Context) (*role, error) {
	what := "read role " + i.engine.cfg.Role
	denied := false
	var answer *api.Secret
	err := i.engine.call(ctx, what, func(l *api.Logical) (err error) {
		answer, err = l.ReadWithContext(ctx, i.engine.cfg.Mount+"/roles/"+i.engine.cfg.Role)
		denied = forbidden(err)
		return err
	})
	switch {
	case err != nil && denied:
		return nil, nil
	case err != nil:
		return nil, err
	case answer == nil:
		return nil, signer.Errorf(signer.Refused, "%s at Vault: there is no such role; write it, or correct role and mount", what)
	}
	r, err := readRole(answer)
	if err != nil {
		return nil, asError(err, what)
	}
	return r, nil
}

// Issue implements signer.Issuer.
func (i *Issuer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	ctx, cancel := i.engine.bounded(ctx)
	defer cancel()
	what := i.what()
	if err := i.suits(r); err != nil {
		return nil, err
	}
	// not_after and not ttl: neither a slow answer nor Vault's clock moves it. Vault does not compare it with the
	// role's max_ttl; suits does.
	got, err := i.sign(ctx, r, "not_after", r.Template.NotAfter.UTC().Format(time.RFC3339))
	if err != nil {
		return nil, err
	}
	chain := got.chain
	if root := chain[len(chain)-1]; bytes.Equal(root.RawSubject, root.RawIssuer) {
		if !i.announced(root) {
			notify.Wake(i.wake)
			return nil, &signer.Error{Fault: signer.Away, RetryAfter: time.Second, Err: errors.New(
				what + " at Vault: its issuer is below another root than before, which the mesh must know first; " +
					"to move to another root, name its issuer in a new signer file and swap")}
		}
		chain = chain[:len(chain)-1]
	}
	return append([]*x509.Certificate{got.cert}, chain...), nil
}

func (i *Issuer) what() string { return "sign by role " + i.engine.cfg.Role }

// suits returns what the request needs and Vault cannot do.
func (i *Issuer) suits(r *signer.Request) error {
	switch {
	case r.Profile != "":
		return signer.Errorf(signer.Unsuitable, "Vault's role signs for all, and knows no %q; ask without CertSigner", r.Profile)
	case len(r.CSR) == 0:
		return signer.Errorf(signer.Unsuitable, "Vault signs only CSRs; ask with one")
	}
	i.mu.Lock()
	known := i.role
	i.mu.Unlock()
	if known == nil || known.maxTTL == 0 {
		return nil
	}
	if ttl := r.Template.NotAfter.Sub(i.engine.d.Clock.Now()); ttl > known.maxTTL+time.Second {
		return signer.Errorf(signer.Refused, "%s at Vault: a leaf for %s is asked for, and the role's max_ttl is %s; raise it, or lower %s",
			i.what(), ttl.Round(time.Second), known.maxTTL, "--workload-ttl")
	}
	return nil
}

// signed is a leaf, and what is above it, nearest first.
type signed struct {
	cert  *x509.Certificate
	chain []*x509.Certificate
}

// sign asks for a leaf with the template's names. field and value say how long it lives.
func (i *Issuer) sign(ctx context.Context, r *signer.Request, field, value string) (*signed, error) {
	t := r.Template
	body := map[string]any{"csr": csrPEM(r.CSR), "format": "der", "exclude_cn_from_sans": true, field: value}
	var uris, ips []string
	for _, u := range t.URIs {
		uris = append(uris, u.String())
	}
	for _, ip := range t.IPAddresses {
		ips = append(ips, ip.String())
	}
	body["uri_sans"] = uris
	if len(t.DNSNames) > 0 {
		body["alt_names"] = strings.Join(t.DNSNames, ",")
	}
	if len(ips) > 0 {
		body["ip_sans"] = ips
	}
	what := i.what()
	answer, err := i.engine.sign(ctx, what, "issuer/"+i.engine.cfg.IssuerRef+"/sign/"+i.engine.cfg.Role, body)
	if err != nil {
		return nil, err
	}
	got := &signed{}
	if got.cert, err = answer.certificate(); err == nil {
		got.chain, err = i.chain(answer)
	}
	if err != nil {
		return nil, asError(err, what)
	}
	if got.cert.Subject.CommonName != "" {
		return nil, signer.Errorf(signer.Refused, "%s at Vault: the leaf has the common name %q, which no verified identity stands for; %s", what,
			words([]string{got.cert.Subject.CommonName}, nil), "set the role's use_csr_common_name=false and require_cn=false")
	}
	return got, nil
}

// chain is what is above a leaf. It is parsed and verified only when it has changed.
func (i *Issuer) chain(a *signedAnswer) ([]*x509.Certificate, error) {
	text := a.Data.IssuingCA + "\n" + strings.Join(a.Data.CAChain, "\n")
	if known := i.above.Load(); known != nil && known.text == text {
		return known.certs, nil
	}
	certs, err := a.above()
	if err != nil {
		return nil, err
	}
	i.above.Store(&parsedChain{text: text, certs: certs})
	return certs, nil
}

// announced tells whether the ca knows a root as this issuer's. Before the first look, it knows none, and the ca's own
// check decides.
func (i *Issuer) announced(root *x509.Certificate) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.current == nil {
		return true
	}
	for _, r := range i.current.Roots {
		if r.Equal(root) {
			return true
		}
	}
	return false
}
