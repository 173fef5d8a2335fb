// Package token issues service account tokens as Kubernetes does, for tests and for the programs that run benchmarks
// and scenarios. NewIssuer makes a key; JWKS is its public part, for the services' flag --jwks-file. Tests use it by
// testkit.Issuer.
package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer signs tokens with ES256. Its fields may be changed between calls.
type Issuer struct {
	// Name is the `iss` of its tokens.
	Name  string
	KeyID string
	Key   *ecdsa.PrivateKey
}

// NewIssuer makes an issuer with a new key.
func NewIssuer(name string) (Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Issuer{}, fmt.Errorf("key of the token issuer: %w", err)
	}
	return Issuer{Name: name, KeyID: "key-1", Key: key}, nil
}

// JWKS is the public key as a JSON Web Key Set (RFC 7517).
func (i *Issuer) JWKS() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: i.Key.Public(), KeyID: i.KeyID, Algorithm: string(jose.ES256), Use: "sig"},
	}})
}

// ServiceAccount signs a token of a service account that is valid from a second ago for ttl.
func (i *Issuer) ServiceAccount(namespace, account, audience string, ttl time.Duration) (string, error) {
	now := time.Now()
	return i.Sign(jwt.Claims{
		Issuer: i.Name, Subject: "system:serviceaccount:" + namespace + ":" + account, Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now.Add(-time.Second)), Expiry: jwt.NewNumericDate(now.Add(ttl)),
	})
}

// Pod signs a token as the kubelet gets it for a Pod, whose UID is "uid-" and its name.
func (i *Issuer) Pod(namespace, account, pod, audience string, ttl time.Duration) (string, error) {
	type object struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	}
	now := time.Now()
	return i.Sign(map[string]any{
		"iss": i.Name, "sub": "system:serviceaccount:" + namespace + ":" + account, "aud": []string{audience},
		"iat": now.Unix(), "nbf": now.Unix() - 1, "exp": now.Add(ttl).Unix(),
		"kubernetes.io": map[string]any{
			"namespace": namespace, "serviceaccount": object{account, "uid-" + account}, "pod": object{pod, "uid-" + pod},
		},
	})
}

// Sign signs a token of any claims.
func (i *Issuer) Sign(claims any) (string, error) {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.Key, KeyID: i.KeyID}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(claims).Serialize()
}
