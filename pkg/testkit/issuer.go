package testkit

import (
	"crypto/ecdsa"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer signs service account tokens (ES256) and keeps their JWKS file.
type Issuer struct {
	t testing.TB
	// Name is the `iss` of its tokens.
	Name string
	// JWKSFile holds its public key.
	JWKSFile string
	KeyID    string
	Key      *ecdsa.PrivateKey
}

// NewIssuer returns an issuer with a new key, and writes jwks.json into a temporary directory.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t, Name: "https://issuer.test", JWKSFile: filepath.Join(t.TempDir(), "jwks.json"), KeyID: "key-1", Key: newKey(t)}
	i.WriteJWKS()
	return i
}

// WriteJWKS writes the current public key, atomically.
func (i *Issuer) WriteJWKS() {
	i.t.Helper()
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: i.Key.Public(), KeyID: i.KeyID, Algorithm: string(jose.ES256), Use: "sig"},
	}})
	if err != nil {
		i.t.Fatal(err)
	}
	WriteFile(i.t, i.JWKSFile, raw)
}

// Rotate replaces key and key id, and writes the file.
func (i *Issuer) Rotate(keyID string) {
	i.t.Helper()
	i.Key, i.KeyID = newKey(i.t), keyID
	i.WriteJWKS()
}

// Token returns a token of a service account that is valid for an hour from now.
func (i *Issuer) Token(namespace, serviceAccount, audience string) string {
	i.t.Helper()
	now := time.Now()
	return i.Sign(jwt.Claims{
		Issuer: i.Name, Subject: "system:serviceaccount:" + namespace + ":" + serviceAccount, Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	})
}

// TokenFile writes a Token to a temporary file.
func (i *Issuer) TokenFile(namespace, serviceAccount, audience string) string {
	i.t.Helper()
	path := filepath.Join(i.t.TempDir(), "token")
	WriteFile(i.t, path, []byte(i.Token(namespace, serviceAccount, audience)))
	return path
}

// Sign returns a token with any claims.
func (i *Issuer) Sign(claims any) string {
	i.t.Helper()
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.Key, KeyID: i.KeyID}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}
