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

// crlMargin is how long before a list expires it is left out: proxies that have it refuse every certificate once it
// has.
const crlMargin = 5 * time.Minute

// revocations reads lists of revoked certificates in PEM, for proxies that verify leaves of the authority at that time.
// Envoy refuses every certificate below an authority whose list is missing, expired or not valid yet, once it has one
// of any authority. So an error means that none can be used; otherwise doubts say what is left out or expires soon.
func revocations(content []byte, a *held.Authority, now time.Time) (out [][]byte, doubts, err error) {
	lists, err := parseCRLs(content)
	if err != nil {
		return nil, nil, err
	}
	needed := a.Path()
	authorities := slices.Clone(needed)
	for _, c := range slices.Concat(a.Chain, a.Roots) {
		if !slices.ContainsFunc(authorities, c.Equal) {
			authorities = append(authorities, c)
		}
	}
	best := make([]*x509.RevocationList, len(authorities))
	for n, list := range lists {
		known := false
		for i, c := range authorities {
			if string(list.RawIssuer) != string(c.RawSubject) || list.CheckSignatureFrom(c) != nil {
				continue
			}
			known = true
			if best[i] == nil || better(list, best[i], now) {
				best[i] = list
			}
		}
		if !known {
			doubts = errors.Join(doubts, fmt.Errorf("list %d, which is left out: %q has issued it, and no certificate of the CA has that name, "+
				"the key that signed it and cRLSign; remove it, or have its issuer sign it again", n+1, list.Issuer))
		}
	}
	for i, list := range best {
		reason := unusable(list, now)
		switch {
		case list == nil && i >= len(needed):
		case reason != "" && i < len(needed):
			err = errors.Join(err, fmt.Errorf("the list of %q %s", authorities[i].Subject, reason))
		case reason != "":
			doubts = errors.Join(doubts, fmt.Errorf("the list of %q, which is left out, %s", authorities[i].Subject, reason))
		case !slices.ContainsFunc(out, func(raw []byte) bool { return bytes.Equal(raw, list.Raw) }):
			out = append(out, list.Raw)
			if left := list.NextUpdate.Sub(now); !list.NextUpdate.IsZero() && left < list.NextUpdate.Sub(list.ThisUpdate)/5 {
				doubts = errors.Join(doubts, fmt.Errorf("the list of %q expires at %s (nextUpdate); write the authority's newest list into it before",
					authorities[i].Subject, stamp(list.NextUpdate)))
			}
		}
	}
	if err != nil {
		return nil, nil, errors.Join(doubts, err)
	}
	return out, doubts, nil
}

// unusable says why a list must not be given to proxies now; "" if it may.
func unusable(list *x509.RevocationList, now time.Time) string {
	switch {
	case list == nil:
		return "is not in it, and proxies with a list of one authority need one of each; add it"
	case now.Before(list.ThisUpdate):
		return fmt.Sprintf("is valid from %s on (thisUpdate); wait, or set the clock", stamp(list.ThisUpdate))
	case !list.NextUpdate.IsZero() && now.Add(crlMargin).After(list.NextUpdate):
		return fmt.Sprintf("expires at %s (nextUpdate), or has; write the authority's newest list into it", stamp(list.NextUpdate))
	}
	return ""
}

// better prefers a list that can be used, and then the newer one.
func better(a, b *x509.RevocationList, now time.Time) bool {
	if usable := unusable(a, now) == ""; usable != (unusable(b, now) == "") {
		return usable
	}
	return a.ThisUpdate.After(b.ThisUpdate)
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
