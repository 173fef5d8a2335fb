package upstream

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// VerifyCRL returns why a list of revoked certificates in DER is not one of the issuers'.
func VerifyCRL(der []byte, issuers []*x509.Certificate) error {
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return err
	}
	for _, c := range issuers {
		if bytes.Equal(c.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(c) == nil {
			return nil
		}
	}
	return fmt.Errorf("no certificate of the signer verifies the list of %q", Quote(list.Issuer.String()))
}

// SetRoots replaces the roots. What Learn and SetCRLs found stays, as far as it verifies with the new ones.
func (t *Trust) SetRoots(roots []*x509.Certificate) error {
	var lists [][]byte
	if current, _ := t.Authorities(); current != nil {
		issuers := roots
		if len(current.Intermediates) > 0 {
			if _, err := pathOf(current.Intermediates, roots, t.clock.Now()); err == nil {
				issuers = slices.Concat(roots, current.Intermediates)
			}
		}
		lists = slices.DeleteFunc(slices.Clone(current.CRLs), func(der []byte) bool { return VerifyCRL(der, issuers) != nil })
	}
	return t.Set(roots, nil, lists)
}

// SetCRLs replaces the lists of revoked certificates, each of which a root or the last intermediates must verify.
func (t *Trust) SetCRLs(lists [][]byte) error {
	current, _ := t.Authorities()
	if current == nil {
		return errors.New("no root is known that verifies lists")
	}
	for _, der := range lists {
		if err := VerifyCRL(der, slices.Concat(current.Roots, current.Intermediates)); err != nil {
			return err
		}
	}
	t.mu.Lock()
	if t.current != current || equalCRLs(current.CRLs, lists) { // if it has just changed, the next call finds that
		t.mu.Unlock()
		return nil
	}
	next := *current
	next.CRLs = lists
	t.current = &next
	t.mu.Unlock()
	t.changes.Notify()
	return nil
}
