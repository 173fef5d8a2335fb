// Package vault signs with the PKI secrets engine of HashiCorp Vault: Minter asks it for an intermediate certificate,
// Issuer for every leaf.
//
// An Issuer signs by a role (issuer/REF/sign/ROLE) and not verbatim (sign-verbatim), though only the latter copies
// extensions from a CSR. The extension that the ca wants in a leaf is the ca's own statement: a CSR is signed with the
// caller's key and cannot have it. And a role keeps Vault's limits, where a verbatim signature knows none. The names
// are parameters, from the ca's template, so the role must not take them from the CSR (use_csr_sans=false).
//
// Vault from 1.11 on, whose PKI engine has several issuers, is set up so; Probe says what differs. PKI is the mount:
//
//	vault write PKI/roles/mesh allowed_uri_sans='spiffe://TRUST-DOMAIN/*' use_csr_sans=false \
//	  use_csr_common_name=false require_cn=false key_type=any key_usage=DigitalSignature max_ttl=48h no_store=true
//
//	path "PKI/issuer/+/sign/mesh"           { capabilities = ["update"] }  # an Issuer
//	path "PKI/roles/mesh"                   { capabilities = ["read"] }    # an Issuer; may be left out
//	path "PKI/issuer/+/sign-intermediate"   { capabilities = ["update"] }  # a Minter
//
// no_store makes Vault faster and its storage smaller; a leaf is then revoked by showing it, not by its serial number.
// DNS names of the ca and of others that --dns-names lists need allowed_domains. The policy default of Vault lets the
// ca renew its token and look at it.
package vault

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/signer"
)

// engine is a PKI secrets engine of Vault, with the ca logged in to it. It is safe for concurrent use.
type engine struct {
	cfg     Config
	d       signer.Deps
	client  *api.Client
	session *session

	crls crls
}

// newEngine makes no connection. The configuration has been checked.
func newEngine(cfg Config, d signer.Deps) (*engine, error) {
	d.Clock = clock.Or(d.Clock)
	e := &engine{cfg: cfg.withDefaults(), d: d}
	var err error
	if e.client, err = newClient(&e.cfg, newTransport(&e.cfg, true)); err != nil {
		return nil, err
	}
	login, err := newClient(&e.cfg, newTransport(&e.cfg, false))
	if err != nil {
		return nil, err
	}
	e.session = &session{cfg: &e.cfg, client: login, clock: d.Clock, log: d.Log, turn: make(chan struct{}, 1)}
	return e, nil
}

// bounded is the context of one operation.
func (e *engine) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.cfg.Timeout.Duration)
}

// call makes a request with the token. If Vault refuses the token, call logs in and makes the request once more.
func (e *engine) call(ctx context.Context, what string, request func(*api.Logical) error) error {
	g, err := e.session.get(ctx, nil)
	if err != nil {
		return err
	}
	err = request(g.as(e.client).Logical())
	if forbidden(err) {
		next, loginErr := e.session.get(ctx, g)
		if loginErr != nil {
			return loginErr
		}
		if next != g {
			g = next
			err = request(g.as(e.client).Logical())
		}
	}
	if err != nil {
		return fault(err, what, g.token)
	}
	return nil
}

// sign asks at a path of the PKI engine for a certificate. It decodes the answer without a map of everything in it, as
// the library makes one, because this is done for each leaf.
func (e *engine) sign(ctx context.Context, what, path string, body map[string]any) (*signedAnswer, error) {
	asked, err := json.Marshal(body)
	if err != nil {
		return nil, signer.Errorf(signer.Unsuitable, "%s at Vault: %w", what, err)
	}
	var answer []byte
	err = e.call(ctx, what, func(l *api.Logical) error {
		resp, err := l.WriteRawWithContext(ctx, e.cfg.Mount+"/"+path, asked)
		if resp != nil {
			defer resp.Body.Close()
		}
		if err == nil {
			answer, err = io.ReadAll(resp.Body)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	got, err := readSignedAnswer(answer)
	if err != nil {
		return nil, asError(err, what)
	}
	return got, nil
}

// public reads a path of the PKI engine that needs no token.
func (e *engine) public(ctx context.Context, what, path string) (*api.Secret, error) {
	answer, err := e.client.Logical().ReadWithContext(ctx, e.cfg.Mount+"/"+path)
	if err == nil && answer == nil {
		// The library returns neither answer nor error for status 404.
		err = &api.ResponseError{StatusCode: http.StatusNotFound, Errors: []string{"no answer for " + e.cfg.Mount + "/" + path}}
	}
	if err != nil {
		return nil, fault(err, what)
	}
	return answer, nil
}

// look reads the issuer's certificate and those above it, and their CRLs if they are to be announced.
func (e *engine) look(ctx context.Context) (*signer.Authorities, error) {
	what := "look at issuer " + e.cfg.IssuerRef
	answer, err := e.public(ctx, what, "issuer/"+e.cfg.IssuerRef+"/json")
	if err != nil {
		return nil, err
	}
	chain, err := readIssuer(answer)
	if err != nil {
		return nil, asError(err, what)
	}
	a, err := authorities(chain, e.d.Clock.Now())
	if err != nil {
		return nil, signer.Errorf(signer.Refused, "%s at Vault: %w", what, err)
	}
	a.CRLs = e.revocations(ctx, chain)
	return a, nil
}

// asError returns the error of an answer that cannot be read as an error of package signer.
func asError(err error, what string) *signer.Error {
	if known, ok := errors.AsType[*signer.Error](err); ok {
		return known
	}
	return signer.Errorf(signer.Lied, "%s at Vault: the answer is not one of Vault's: %w; compare address with Vault's", what, err)
}
