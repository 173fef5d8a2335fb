package testkit

import (
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit/token"
)

// Issuer is a token.Issuer that keeps its JWKS in a file and fails its test on errors.
type Issuer struct {
	token.Issuer
	t testing.TB
	// JWKSFile holds its public key.
	JWKSFile string
}

// NewIssuer returns an issuer with a new key, and writes jwks.json into a temporary directory.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	inner, err := token.NewIssuer("https://issuer.test")
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{Issuer: inner, t: t, JWKSFile: filepath.Join(t.TempDir(), "jwks.json")}
	i.WriteJWKS()
	return i
}

// WriteJWKS writes the current public key, atomically.
func (i *Issuer) WriteJWKS() {
	i.t.Helper()
	raw, err := i.JWKS()
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
	return i.must(i.ServiceAccount(namespace, serviceAccount, audience, time.Hour))
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
	return i.must(i.Issuer.Sign(claims))
}

func (i *Issuer) must(token string, err error) string {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}
