// Package tokens issues the service account tokens of a mesh without Kubernetes: what the API server projects into
// Pods, from a key of the run directory.
package tokens

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer signs tokens. It is safe for concurrent use.
type Issuer struct {
	name   string
	key    *ecdsa.PrivateKey
	keyID  string
	signer jose.Signer
}

// NewIssuer makes an issuer with a new P-256 key. name is the tokens' `iss`.
func NewIssuer(name string) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	return issuerWith(name, key)
}

// LoadIssuer makes an issuer with the key that another one's KeyPEM gave.
func LoadIssuer(name string, keyPEM []byte) (*Issuer, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("issuer key: is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	return issuerWith(name, key)
}

func issuerWith(name string, key *ecdsa.PrivateKey) (*Issuer, error) {
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	sum := sha256.Sum256(der)
	i := &Issuer{name: name, key: key, keyID: base64.RawURLEncoding.EncodeToString(sum[:])}
	i.signer, err = jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: i.keyID}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("issuer: %w", err)
	}
	return i, nil
}

// KeyPEM is the private key; keep it 0600.
func (i *Issuer) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(i.key)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// JWKS is the public key set as JSON.
func (i *Issuer) JWKS() ([]byte, error) {
	return json.MarshalIndent(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key: &i.key.PublicKey, KeyID: i.keyID, Algorithm: string(jose.ES256), Use: "sig",
	}}}, "", "  ")
}

// Subject is whom a token speaks for.
type Subject struct {
	Namespace, Account string
	// Pod the token is bound to; empty for a person or a service.
	Pod string
	// Audience of the token.
	Audience string
}

// claims beyond the registered ones, as Kubernetes' bound tokens carry them.
type claims struct {
	jwt.Claims
	Kubernetes kubernetes `json:"kubernetes.io"`
}

type kubernetes struct {
	Namespace      string `json:"namespace"`
	ServiceAccount named  `json:"serviceaccount"`
	Pod            *named `json:"pod,omitempty"`
}

type named struct {
	Name string `json:"name"`
}

// Issue signs a token that is valid from now for ttl.
func (i *Issuer) Issue(s Subject, now time.Time, ttl time.Duration) (string, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return "", fmt.Errorf("token id: %w", err)
	}
	c := claims{
		Claims: jwt.Claims{
			ID:       base64.RawURLEncoding.EncodeToString(id),
			Issuer:   i.name,
			Subject:  "system:serviceaccount:" + s.Namespace + ":" + s.Account,
			Audience: jwt.Audience{s.Audience},
			IssuedAt: jwt.NewNumericDate(now),
			// A little in the past: clocks of one machine agree, truncation to seconds does not.
			NotBefore: jwt.NewNumericDate(now.Add(-time.Second)),
			Expiry:    jwt.NewNumericDate(now.Add(ttl)),
		},
		Kubernetes: kubernetes{Namespace: s.Namespace, ServiceAccount: named{s.Account}},
	}
	if s.Pod != "" {
		c.Kubernetes.Pod = &named{s.Pod}
	}
	token, err := jwt.Signed(i.signer).Claims(c).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of %s/%s: %w", s.Namespace, s.Account, err)
	}
	return token, nil
}
