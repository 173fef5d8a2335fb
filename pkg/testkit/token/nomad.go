package token

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// nomadKeyID is an id as Nomad gives its keys.
const nomadKeyID = "15a95f48-001a-8be5-5da9-d94901d022c9"

// Nomad signs workload identities as Nomad's servers do: with RS256, or EdDSA as clusters from before 1.7.
type Nomad struct {
	// Name is the `iss` of its tokens, which they have with oidc_issuer; "" for none.
	Name string
	key  crypto.Signer
	alg  jose.SignatureAlgorithm
}

// NewNomad makes a cluster of Nomad with a new key of RSA, or of Ed25519.
func NewNomad(name string, edwards bool) (n Nomad, err error) {
	n = Nomad{Name: name, alg: jose.RS256}
	if edwards {
		n.alg = jose.EdDSA
		_, n.key, err = ed25519.GenerateKey(rand.Reader)
	} else {
		n.key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		return Nomad{}, fmt.Errorf("key of Nomad: %w", err)
	}
	return n, nil
}

// JWKS is what /.well-known/jwks.json answers.
func (n *Nomad) JWKS() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: n.key.Public(), KeyID: nomadKeyID, Algorithm: string(n.alg), Use: "sig"},
	}})
}

// Task signs the identity of a task for the ca that is valid for an hour. change, if any, changes its claims.
func (n *Nomad) Task(namespace, job, task string, change func(claims map[string]any)) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: n.alg, Key: jose.JSONWebKey{Key: n.key, KeyID: nomadKeyID}}, nil)
	if err != nil {
		return "", err
	}
	now := time.Now()
	claims := map[string]any{
		"aud": "istio-ca", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": now.String(),
		"sub": "global:" + namespace + ":" + job + ":group:" + task + ":fairlead", "nomad_namespace": namespace, "nomad_job_id": job,
		"nomad_task": task, "nomad_allocation_id": "5c6328f7-48c5-4d03-bada-91ef2e904d0d",
	}
	if n.Name != "" {
		claims["iss"] = n.Name
	}
	if change != nil {
		change(claims)
	}
	return jwt.Signed(signer).Claims(claims).Serialize()
}
