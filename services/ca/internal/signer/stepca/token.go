package stepca

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"fairlead.dev/services/ca/internal/signer"
)

// algorithm is what a key signs with.
func algorithm(k any) (string, error) {
	switch k := k.(type) {
	case *ecdsa.PrivateKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return string(jose.ES256), nil
		case 384:
			return string(jose.ES384), nil
		case 521:
			return string(jose.ES512), nil
		}
	case *rsa.PrivateKey:
		return string(jose.RS256), nil
	case ed25519.PrivateKey:
		return string(jose.EdDSA), nil
	}
	return "", errors.New("is a key of a kind that signs no tokens; use ECDSA P-256")
}

// tokenLife is how long a token may be used, once.
const tokenLife = 2 * time.Minute

// claims are those of a one-time token of step.
type claims struct {
	jwt.Claims
	// SANs are the names of the certificate.
	SANs []string `json:"sans"`
	// Confirmation binds the token to a CSR.
	Confirmation map[string]string `json:"cnf,omitempty"`
	// Extensions is for the provisioner's template.
	Extensions []extension `json:"extensions,omitempty"`
}

// extension is one extension in the form of step's templates.
type extension struct {
	ID       string `json:"id"`
	Critical bool   `json:"critical"`
	Value    []byte `json:"value"`
}

// maxSubject is the longest common name (RFC 5280, upper bounds).
const maxSubject = 64

// claimsOf says in a token which certificate a CSR gets.
func (s *Signer) claimsOf(r *signer.Request, now time.Time) claims {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	subject, audience := r.Identity.Path(), s.url+"/1.0/sign"
	if s.cfg.X5C != nil {
		audience += "#x5c/" + s.cfg.Provisioner // step-ca finds the provisioner by it
	}
	c := claims{
		Claims: jwt.Claims{
			Issuer: s.cfg.Provisioner, Subject: subject[max(0, len(subject)-maxSubject):], Audience: jwt.Audience{audience},
			NotBefore: jwt.NewNumericDate(now), IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(tokenLife)),
			ID: hex.EncodeToString(id[:]),
		},
	}
	for _, u := range r.Template.URIs {
		c.SANs = append(c.SANs, u.String())
	}
	c.SANs = append(c.SANs, r.Template.DNSNames...)
	for _, ip := range r.Template.IPAddresses {
		c.SANs = append(c.SANs, ip.String())
	}
	sum := sha256.Sum256(r.CSR)
	c.Confirmation = map[string]string{"x5rt#S256": base64.RawURLEncoding.EncodeToString(sum[:])}
	if s.cfg.Extensions {
		for _, e := range r.Template.ExtraExtensions {
			c.Extensions = append(c.Extensions, extension{ID: e.Id.String(), Critical: e.Critical, Value: e.Value})
		}
	}
	return c
}

// token signs claims.
func (k key) token(c claims) (string, error) {
	options := (&jose.SignerOptions{}).WithType("JWT")
	if k.x5c != nil {
		options = options.WithHeader("x5c", k.x5c)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k.JSONWebKey}, options)
	if err != nil {
		return "", fmt.Errorf("the provisioner's key cannot sign: %w", err)
	}
	return jwt.Signed(s).Claims(c).Serialize()
}
