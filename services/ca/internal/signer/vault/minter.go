package vault

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"fairlead.dev/services/ca/internal/signer"
)

// Minter has Vault sign intermediates. It is safe for concurrent use.
type Minter struct{ engine *engine }

var _ signer.Minter = (*Minter)(nil)

// NewMinter makes a Minter; it makes no connection.
func NewMinter(cfg MinterConfig, d signer.Deps) (*Minter, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	e, err := newEngine(Config(cfg), d)
	if err != nil {
		return nil, err
	}
	return &Minter{e}, nil
}

// Run keeps the ca logged in until ctx ends. Without it, Mint logs in when it must, and a token of auth.token is not
// renewed.
func (m *Minter) Run(ctx context.Context) error {
	m.engine.session.run(ctx)
	return nil
}

// Problem is why the ca is not logged in, as Run saw it last; nil if it is.
func (m *Minter) Problem() error { return m.engine.session.trouble() }

// Authorities implements signer.Minter. It needs no login.
func (m *Minter) Authorities(ctx context.Context) (*signer.Authorities, error) {
	ctx, cancel := m.engine.bounded(ctx)
	defer cancel()
	return m.engine.look(ctx)
}

// Mint implements signer.Minter. Vault copies subject and names from a CSR, which the intermediate's key signs; the
// intermediate may sign leaves and no further intermediates.
func (m *Minter) Mint(ctx context.Context, r signer.MintRequest) (chain, roots []*x509.Certificate, err error) {
	ctx, cancel := m.engine.bounded(ctx)
	defer cancel()
	what := "sign an intermediate by issuer " + m.engine.cfg.IssuerRef
	if len(r.Subject.ToRDNSequence()) == 0 {
		return nil, nil, signer.Errorf(signer.Unsuitable, "%s at Vault: the intermediate has no subject; ask with one, authorities need it", what)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: r.Subject, URIs: r.URIs}, r.Key)
	if err != nil {
		return nil, nil, signer.Errorf(signer.Unsuitable, "%s at Vault: make the CSR with the intermediate's key: %w", what, err)
	}
	answer, err := m.engine.sign(ctx, what, "issuer/"+m.engine.cfg.IssuerRef+"/sign-intermediate", map[string]any{
		"csr": csrPEM(csr), "use_csr_values": true, "exclude_cn_from_sans": true, "max_path_length": 0, "format": "der",
		"ttl": fmt.Sprintf("%ds", int64(r.TTL.Seconds())),
	})
	if err != nil {
		return nil, nil, err
	}
	made, err := answer.certificate()
	if err != nil {
		return nil, nil, asError(err, what)
	}
	rest, err := answer.above()
	if err != nil {
		return nil, nil, asError(err, what)
	}
	// What is above the new certificate is judged as for an issuer that is only looked at.
	above, err := authorities(rest, m.engine.d.Clock.Now())
	if err != nil {
		return nil, nil, signer.Errorf(signer.Refused, "%s at Vault: %w", what, err)
	}
	return append([]*x509.Certificate{made}, above.Intermediates...), above.Roots, nil
}

func csrPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}
