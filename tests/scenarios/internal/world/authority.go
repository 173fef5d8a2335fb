package world

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Tokens.
const (
	tokenIssuer = "https://issuer.test"
	tokenKey    = "key"
	// tokenTTL is longer than any run.
	tokenTTL = 24 * time.Hour
	// Audiences: of workloads' tokens, and of the administrator's.
	forCA    = "istio-ca"
	forAdmin = "fairlead"
)

// authority signs service account tokens, as Kubernetes does.
type authority struct{ signer jose.Signer }

// newAuthority writes its public keys to a file.
func newAuthority(jwksFile string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: tokenKey}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, err
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: tokenKey, Algorithm: string(jose.ES256), Use: "sig"}}})
	if err != nil {
		return nil, err
	}
	return &authority{signer}, os.WriteFile(jwksFile, keys, 0o644)
}

// writeToken writes the token of a service account to a file that only its user can read.
func (a *authority) writeToken(file string, uid int, namespace, account, audience string) error {
	now := time.Now()
	token, err := jwt.Signed(a.signer).Claims(jwt.Claims{
		Issuer: tokenIssuer, Subject: "system:serviceaccount:" + namespace + ":" + account, Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now.Add(-time.Second)), Expiry: jwt.NewNumericDate(now.Add(tokenTTL)),
	}).Serialize()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	return os.Chown(file, uid, uid)
}
