package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"time"
)

// KeysMaxAge is how long last good keys count that cannot be fetched again.
const KeysMaxAge = 7 * 24 * time.Hour

// KeySource says where the keys of a JWT rule without inline keys come from: its jwksUri, or its issuer's OpenID
// discovery document. One of both is set.
type KeySource struct{ URI, Issuer string }

// KeySourceOf returns the source for a rule's jwksUri and issuer, as the user has written them; the zero value if both
// are empty.
func KeySourceOf(jwksURI, issuer string) KeySource {
	if jwksURI != "" {
		return KeySource{URI: jwksURI}
	}
	return KeySource{Issuer: issuer}
}

// Name is the name of the Jwks resource that has the keys: 32 hexadecimal digits of the SHA-256 of the source, which
// may be longer than a name should be. A jwksUri is never taken for an issuer: a user who names an issuer's discovery
// document as jwksUri does not change what others get for the issuer.
func (s KeySource) Name() string {
	sum := sha256.Sum256([]byte(s.Issuer + "\x00" + s.URI))
	return hex.EncodeToString(sum[:16])
}

// String names the source in a sentence, without the password that an address may have.
func (s KeySource) String() string {
	what, address := "issuer ", s.Issuer
	if s.URI != "" {
		what, address = "jwksUri ", s.URI
	}
	if u, err := url.Parse(address); err == nil && u.User != nil {
		address = u.Redacted()
	}
	return what + address
}
