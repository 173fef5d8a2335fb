// Package proof records in a certificate when its workload last showed a token. The ca copies the time into each
// certificate that is renewed with a certificate; so it can bound how long renewals go on without a token, and needs no
// state of its own for that.
package proof

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"time"
)

// OID of the extension, which is not critical: only the ca reads it. Fairlead has no arc of its own, and UUIDs under
// 2.25 have numbers that Go's parsers refuse. So the OID is in the Internet's experimental arc (RFC 1155, section 3.1),
// under a number that is unlikely to be used by others: the first 31 bits of SHA-256 of "fairlead.dev".
var OID = asn1.ObjectIdentifier{1, 3, 6, 1, 3, 1018493141, 1}

// Extension returns the extension that says that a token proved the identity at this time, to the second.
func Extension(at time.Time) (pkix.Extension, error) {
	value, err := asn1.MarshalWithParams(at.UTC().Truncate(time.Second), "generalized")
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("time of the last token: %w", err)
	}
	return pkix.Extension{Id: OID, Value: value}, nil
}

// Of returns when the owner of a verified certificate last showed a token. For a certificate without the extension,
// issued by an earlier version or by another authority of the bundle, it returns the start of its validity; for an
// extension that cannot be parsed it returns the zero time, so that the proof counts as expired.
func Of(cert *x509.Certificate) time.Time {
	for _, e := range cert.Extensions {
		if !e.Id.Equal(OID) {
			continue
		}
		var at time.Time
		if rest, err := asn1.UnmarshalWithParams(e.Value, &at, "generalized"); err != nil || len(rest) > 0 {
			return time.Time{}
		}
		return at
	}
	return cert.NotBefore
}
