package cacerts

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/held"
)

// maxCRLs bounds the lists of a file.
const maxCRLs = 50

// revocations reads lists of revoked certificates in PEM, for proxies that verify leaves of the authority at that time.
// Envoy refuses every certificate below an authority whose list is missing, expired or not valid yet, once it has one
// of any authority: so it is all of these or an error.
func revocations(content []byte, a *held.Authority, now time.Time) ([][]byte, error) {
	lists, err := parseCRLs(content)
	if err != nil {
		return nil, err
	}
	needed := a.Path()
	authorities := slices.Clone(needed)
	for _, c := range slices.Concat(a.Chain, a.Roots) {
		if !slices.ContainsFunc(authorities, c.Equal) {
			authorities = append(authorities, c)
		}
	}
	var errs []error
	newest := make([]*x509.RevocationList, len(authorities))
	for n, list := range lists {
		known := false
		for i, c := range authorities {
			if string(list.RawIssuer) != string(c.RawSubject) || list.CheckSignatureFrom(c) != nil {
				continue
			}
			known = true
			if newest[i] == nil || list.ThisUpdate.After(newest[i].ThisUpdate) {
				newest[i] = list
			}
		}
		if !known {
			errs = append(errs, fmt.Errorf("list %d: %q has issued it, and no certificate of the CA has that name, the key that signed it and "+
				"cRLSign; leave the list out, or have its issuer sign it again", n+1, list.Issuer))
		}
	}
	var out [][]byte
	for i, list := range newest {
		subject := authorities[i].Subject
		switch {
		case list == nil && i < len(needed):
			errs = append(errs, fmt.Errorf("has no list of %q, and proxies with a list of one authority need one of each; add it", subject))
		case list == nil || slices.ContainsFunc(out, func(raw []byte) bool { return bytes.Equal(raw, list.Raw) }):
		case now.Before(list.ThisUpdate):
			errs = append(errs, fmt.Errorf("the list of %q is valid from %s on (thisUpdate); wait, or set the clock", subject,
				stamp(list.ThisUpdate)))
		case !list.NextUpdate.IsZero() && !now.Before(list.NextUpdate):
			errs = append(errs, fmt.Errorf("the list of %q expired at %s (nextUpdate); write the authority's newest list into it", subject,
				stamp(list.NextUpdate)))
		default:
			out = append(out, list.Raw)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// parseCRLs reads the lists, at least one.
func parseCRLs(content []byte) ([]*x509.RevocationList, error) {
	var lists []*x509.RevocationList
	blocks := 0
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if blocks++; blocks > maxCRLs {
			return nil, fmt.Errorf("has more than %d lists; leave in it only those of the CA's certificates", maxCRLs)
		}
		if block.Type != "X509 CRL" {
			return nil, fmt.Errorf("block %d is a %q and no X509 CRL; leave only lists of revoked certificates in it", blocks, block.Type)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("list %d cannot be read: %w; write the authority's newest list into it", blocks, err)
		}
		lists = append(lists, list)
	}
	switch {
	case begins(content) != blocks:
		return nil, errors.New("a PEM block in it has no end; write the file again, as a whole")
	case blocks == 0:
		return nil, errors.New("has no list of revoked certificates in PEM; write one into it, or remove the file")
	}
	return lists, nil
}
