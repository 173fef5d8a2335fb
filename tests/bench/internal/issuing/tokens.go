package issuing

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"fairlead.dev/proto/fairlead/contract"
)

// issuerName is the `iss` of the tokens.
const issuerName = "https://issuer.test"

// Tokens signs service account tokens with RS256, as Kubernetes does and as istiod demands.
type Tokens struct{ key *rsa.PrivateKey }

// NewTokens makes the key.
func NewTokens() (*Tokens, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	return &Tokens{key}, err
}

// JWKS is the public key as a JSON Web Key Set.
func (k *Tokens) JWKS() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: k.key.Public(), KeyID: "one", Algorithm: string(jose.RS256), Use: "sig"},
	}})
}

// Of is the token of a workload.
func (k *Tokens) Of(w *Workload) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: k.key, KeyID: "one"}}, nil)
	if err != nil {
		return "", err
	}
	now := time.Now()
	return jwt.Signed(signer).Claims(map[string]any{
		"iss": issuerName, "sub": "system:serviceaccount:" + w.Namespace + ":" + w.Account, "aud": []string{contract.TokenAudience},
		"iat": now.Unix(), "exp": now.Add(12 * time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      w.Namespace,
			"pod":            map[string]any{"name": w.Account + "-0", "uid": "7d0b2d39-5d8e-4a5f-9b1a-" + w.Account},
			"serviceaccount": map[string]any{"name": w.Account, "uid": "0a8f0f0e-7c57-4a39-9d36-" + w.Account},
		},
	}).Serialize()
}
