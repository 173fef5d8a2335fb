// Package tokentime records in a certificate when its workload last showed a token (OpenID Connect calls such a time
// auth_time). Policy sets it with Extension and copies it into each certificate that is renewed with a certificate. So
// policy can bound for how long a workload renews without a token, and the ca keeps no state for that. Of reads it
// back. For a token of a remote cluster it records the cluster, too, whose rule decides about renewals.
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

// foreign is what the extension has if the token was one of a remote cluster. A ca that does not know of these cannot
// parse it, so that it wants a token.
type foreign struct {
	At      time.Time `asn1:"generalized"`
	Cluster string    `asn1:"utf8"`
}

// Extension encodes the time at which a token proved the identity, to the second, and the name of the remote cluster
// whose token it was; "" for the own cluster.
func Extension(at time.Time, cluster string) (pkix.Extension, error) {
	at = at.UTC().Truncate(time.Second)
	value, err := asn1.MarshalWithParams(at, "generalized")
	if cluster != "" {
		value, err = asn1.Marshal(foreign{at, cluster})
	}
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("time of the last token: %w", err)
	}
	return pkix.Extension{Id: OID, Value: value}, nil
}

// Of returns when the owner of a verified certificate last showed a token. A certificate without the extension comes
// from an earlier version or from another authority of the bundle: Of returns the start of its validity. For an
// extension that cannot be parsed Of returns the zero time, so that a renewal needs a token.
func Of(cert *x509.Certificate) time.Time {
	at, _ := read(cert)
	return at
}

// Cluster returns of which remote cluster that token was, "" for the own one.
func Cluster(cert *x509.Certificate) string {
	_, cluster := read(cert)
	return cluster
}

func read(cert *x509.Certificate) (at time.Time, cluster string) {
	for _, e := range cert.Extensions {
		if !e.Id.Equal(OID) {
			continue
		}
		if rest, err := asn1.UnmarshalWithParams(e.Value, &at, "generalized"); err == nil && len(rest) == 0 {
			return at, ""
		}
		var of foreign
		if rest, err := asn1.Unmarshal(e.Value, &of); err == nil && len(rest) == 0 && of.Cluster != "" {
			return of.At, of.Cluster
		}
		return time.Time{}, ""
	}
	return cert.NotBefore, ""
}
