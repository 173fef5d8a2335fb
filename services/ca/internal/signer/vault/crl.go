package vault

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"
)

const (
	// crlMargin before its end a CRL is not announced any more, so that the mesh has forgotten it by then: proxies
	// refuse everybody by a list that has ended.
	crlMargin = 10 * time.Minute
	// maxIssuers of a PKI engine are looked through for the authorities of a chain.
	maxIssuers = 100
)

// crls are the CRLs that were announced last.
type crls struct {
	mu sync.Mutex
	// of is the issuer's certificate.
	of *x509.Certificate
	// lists have one CRL for each authority of the issuer's chain, until the first of them ends.
	lists [][]byte
	until time.Time
	// problem is the last one that was logged.
	problem string
}

// revocations returns a CRL for each authority of a chain, or none at all. While Vault's cannot be used, those
// announced last stay until they end.
func (e *engine) revocations(ctx context.Context, chain []*x509.Certificate) [][]byte {
	if !e.cfg.CRL {
		return nil
	}
	lists, until, err := e.readCRLs(ctx, chain)
	e.crls.mu.Lock()
	defer e.crls.mu.Unlock()
	stay := chain[0].Equal(e.crls.of) && e.d.Clock.Now().Before(e.crls.until)
	if said := errorText(err); said != e.crls.problem {
		if e.crls.problem = said; err != nil {
			e.d.Log.Warn("Vault's lists of revoked certificates cannot be used", "issuer", e.cfg.IssuerRef, "announced_ones_stay", stay, "err", err)
		}
	}
	switch {
	case err == nil:
		e.crls.of, e.crls.lists, e.crls.until = chain[0], lists, until
	case !stay:
		e.crls.of, e.crls.lists = nil, nil
	}
	return e.crls.lists
}

// readCRLs reads the CRL of each authority of a chain.
func (e *engine) readCRLs(ctx context.Context, chain []*x509.Certificate) (lists [][]byte, until time.Time, err error) {
	ids, err := e.issuerIDs(ctx, chain)
	if err != nil {
		return nil, time.Time{}, err
	}
	for n, authority := range chain {
		what := "read the CRL of issuer " + ids[n]
		answer, err := e.public(withLimit(ctx, maxCRL), what, "issuer/"+ids[n]+"/crl")
		if err != nil {
			return nil, time.Time{}, err
		}
		list, err := readCRL(answer, authority, e.d.Clock.Now())
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("%s at Vault: %w", what, err)
		}
		lists = append(lists, list.Raw)
		if end := list.NextUpdate.Add(-crlMargin); until.IsZero() || end.Before(until) {
			until = end
		}
	}
	return lists, until, nil
}

// issuerIDs finds the authorities of a chain among the issuers of the PKI engine. The first one is that of issuerRef.
func (e *engine) issuerIDs(ctx context.Context, chain []*x509.Certificate) ([]string, error) {
	ids := make([]string, len(chain))
	ids[0] = e.cfg.IssuerRef
	missing := len(chain) - 1
	if missing == 0 {
		return ids, nil
	}
	const what = "list the issuers"
	answer, err := e.client.Logical().ListWithContext(ctx, e.cfg.Mount+"/issuers")
	if err == nil && (answer == nil || answer.Data == nil) {
		err = errNoSecret
	}
	if err != nil {
		return nil, fault(err, what)
	}
	known, err := texts(answer.Data, "keys")
	if err != nil || len(known) > maxIssuers {
		return nil, fmt.Errorf("%s at Vault: more than %d, or no list of them: %w", what, maxIssuers, err)
	}
	for _, id := range known {
		if !segmentPattern.MatchString(id) {
			continue
		}
		answer, err := e.public(ctx, what, "issuer/"+id+"/json")
		if err != nil {
			return nil, err
		}
		cert, err := certificate("certificate", text(answer.Data, "certificate"))
		if err != nil {
			return nil, fmt.Errorf("issuer %s at Vault: %w", id, err)
		}
		for n := 1; n < len(chain); n++ {
			if ids[n] == "" && chain[n].Equal(cert) {
				ids[n] = id
				missing--
			}
		}
		if missing == 0 {
			return ids, nil
		}
	}
	return nil, errors.New("the PKI engine does not have all authorities of the chain as issuers; import them with their keys, " +
		"or remove crl")
}

// readCRL reads the answer of issuer/REF/crl, and verifies it with the issuer's certificate.
func readCRL(s *api.Secret, issuer *x509.Certificate, now time.Time) (*x509.RevocationList, error) {
	if s == nil || s.Data == nil || text(s.Data, "crl") == "" {
		return nil, errors.New("it has none; import its key, and allow it crl-signing, or remove crl")
	}
	block, _ := pem.Decode([]byte(text(s.Data, "crl")))
	if block == nil || block.Type != "X509 CRL" {
		return nil, errors.New("crl is no CRL in PEM")
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("crl: %w", err)
	}
	if err := list.CheckSignatureFrom(issuer); err != nil {
		return nil, fmt.Errorf("crl: not signed by the issuer: %w", err)
	}
	if list.NextUpdate.IsZero() || !now.Before(list.NextUpdate.Add(-crlMargin)) {
		return nil, fmt.Errorf("crl: ends at %s; set auto_rebuild=true in the PKI engine's config/crl",
			list.NextUpdate.UTC().Format(time.RFC3339))
	}
	return list, nil
}
