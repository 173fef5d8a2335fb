package driver

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
)

// revocation is what the lists of revoked certificates in the bundle are made of.
type revocation struct {
	// of are the signers' authorities; nil for a signer whose authorities are not known.
	of []*signer.Authorities
	// roots are all of the bundle, in PEM.
	roots []string
	// keyIDs are the authority key identifiers of the certificates that are valid still.
	keyIDs [][]byte
}

// judgement is what was found of a revocation.
type judgement struct {
	revocation
	lists [][]byte
	err   error
}

// revocations are the lists of the bundle with these roots.
func (d *Driver) revocations(doc document, roots []string) [][]byte {
	in := revocation{roots: roots}
	ids := []uint64{doc.Current.ID}
	if doc.Next != nil && doc.Step != rotation.Prepare {
		ids = append(ids, doc.Next.ID)
	}
	if doc.Step != rotation.Retire {
		for _, old := range doc.Old {
			ids = append(ids, old.ID)
		}
	}
	some := false
	for _, id := range ids {
		var a *signer.Authorities
		if w := d.worker(id); w != nil {
			a, _ = w.opened.Guard.Authorities()
		}
		some = some || a != nil && len(a.CRLs) > 0
		in.of = append(in.of, a)
	}
	if !some {
		d.note("revocation lists", nil)
		return nil
	}
	in.keyIDs = d.cfg.Holders.KeyIDs(ids...)
	d.mu.Lock()
	last := d.judged
	d.mu.Unlock()
	if !last.equal(in) { // the bundle is published every few seconds
		last = judgement{revocation: in}
		last.lists, last.err = in.lists()
		d.mu.Lock()
		d.judged = last
		d.mu.Unlock()
	}
	d.note("revocation lists", last.err)
	return last.lists
}

func (r revocation) equal(other revocation) bool {
	return slices.EqualFunc(r.of, other.of, (*signer.Authorities).Equal) && slices.Equal(r.roots, other.roots) &&
		slices.EqualFunc(r.keyIDs, other.keyIDs, bytes.Equal)
}

// lists are those of all signers, if each authority that a proxy may meet has one: Envoy refuses every certificate
// below an authority without a list, once it has any. So an error means that there are none.
func (r revocation) lists() ([][]byte, error) {
	const remedy = "%s, so that proxies get no list of revoked certificates: they would refuse each of its certificates; have its signer " +
		"publish one"
	var lists []*x509.RevocationList
	var out [][]byte
	var authorities []*x509.Certificate
	for _, a := range r.of {
		if a == nil {
			return nil, errors.New("a signer of the trust bundle is away, so that proxies get no list of revoked certificates")
		}
		authorities = slices.Concat(authorities, a.Intermediates)
		for _, der := range a.CRLs {
			if slices.ContainsFunc(out, func(other []byte) bool { return bytes.Equal(der, other) }) {
				continue
			}
			list, err := x509.ParseRevocationList(der)
			if err != nil {
				return nil, fmt.Errorf("a list of revoked certificates is malformed, and proxies get none: %w", err)
			}
			lists, out = append(lists, list), append(out, der)
		}
	}
	for _, text := range r.roots {
		root, err := tlsconf.ParseCertificates([]byte(text))
		if err != nil {
			return nil, err
		}
		authorities = append(authorities, root...)
	}
	var covered [][]byte
	for _, c := range authorities {
		if !slices.ContainsFunc(lists, func(l *x509.RevocationList) bool { return listOf(l, c) }) {
			return nil, fmt.Errorf(remedy, fmt.Sprintf("the authority %q (serial number %x) has no list", c.Subject, c.SerialNumber))
		}
		covered = append(covered, c.SubjectKeyId)
	}
	for _, l := range lists {
		covered = append(covered, l.AuthorityKeyId)
	}
	for _, id := range r.keyIDs {
		if len(id) > 0 && !slices.ContainsFunc(covered, func(other []byte) bool { return bytes.Equal(id, other) }) {
			return nil, fmt.Errorf(remedy, fmt.Sprintf("certificates that are valid still are of an authority (key identifier %x) that has no list",
				id))
		}
	}
	return out, nil
}

// listOf reports whether an authority has issued a list.
func listOf(l *x509.RevocationList, c *x509.Certificate) bool {
	return bytes.Equal(l.RawIssuer, c.RawSubject) && (len(l.AuthorityKeyId) == 0 || bytes.Equal(l.AuthorityKeyId, c.SubjectKeyId)) &&
		l.CheckSignatureFrom(c) == nil
}
