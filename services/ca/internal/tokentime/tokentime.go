// Package tokentime records in a certificate when its workload last showed a token (OpenID Connect calls such a time
// auth_time). Policy sets it with Extension and copies it into each certificate that is renewed with a certificate. So
// policy can bound for how long a workload renews without a token, and the ca keeps no state for that. Of reads it
// back.
package tokentime

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"time"
)

// OID of the extension, which is not critical: only the ca reads it. Fairlead has no arc of its own, and Go's parsers
// reject the numbers of UUIDs under 2.25. So the OID is in the Internet's experimental arc (RFC 1155, section 3.1),
// under a number that others are unlikely to use: the first 31 bits of SHA-256 of "fairlead.dev".
var OID = asn1.ObjectIdentifier{1, 3, 6, 1, 3, 1018493141, 1}

// Extension encodes the time at which a token proved the identity, to the second.
func Extension(at time.Time) (pkix.Extension, error) {
	value, err := asn1.MarshalWithParams(at.UTC().Truncate(time.Second), "generalized")
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("time of the last token: %w", err)
	}
	return pkix.Extension{Id: OID, Value: value}, nil
}

// Of returns when the owner of a verified certificate last showed a token. A certificate without the extension comes
// from an earlier version or from another authority of the bundle: Of returns the start of its validity. For an
// extension that cannot be parsed Of returns the zero time, so that a renewal needs a token.
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
