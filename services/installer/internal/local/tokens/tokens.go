// Package tokens issues service account tokens for a mesh without Kubernetes, in place of the API server: an Issuer
// signs them with a key of the run directory, and Files keeps the token files of services and Pods fresh, like a
// kubelet.
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

// NewIssuer returns an issuer with a new P-256 key. name is the `iss` of its tokens.
func NewIssuer(name string) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	return issuerWith(name, key)
}

// LoadIssuer returns an issuer with a key from KeyPEM.
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

// KeyPEM returns the private key; its file must be readable by its owner alone.
func (i *Issuer) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(i.key)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// JWKS returns the public key as a JSON Web Key Set.
func (i *Issuer) JWKS() ([]byte, error) {
	return json.MarshalIndent(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key: &i.key.PublicKey, KeyID: i.keyID, Algorithm: string(jose.ES256), Use: "sig",
	}}}, "", "  ")
}

// Subject is the service account that a token is for.
type Subject struct {
	Namespace, Account string
	// Pod is the Pod that the token is bound to; empty for a person or a service.
	Pod string
	// Audience is the token's `aud`.
	Audience string
}

// claims are those of Kubernetes' bound tokens.
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

// Issue returns a token that is valid from now for ttl.
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
			// A second earlier, because times in tokens are truncated to seconds.
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
