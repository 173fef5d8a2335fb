package stepca

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"fairlead.dev/services/ca/internal/signer/signertest"
)

func pemOf(t testing.TB, kind string, key any) string {
	t.Helper()
	var der []byte
	var err error
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if kind == "EC PRIVATE KEY" {
			der, err = x509.MarshalECPrivateKey(k)
		} else {
			der, err = x509.MarshalPKCS8PrivateKey(k)
		}
	case *rsa.PrivateKey:
		der = x509.MarshalPKCS1PrivateKey(k)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestParseKey(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	jwk := func(k jose.JSONWebKey) string {
		raw, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	encrypter, err := jose.NewEncrypter(jose.A128GCM, jose.Recipient{
		Algorithm: jose.PBES2_HS256_A128KW, Key: []byte("password"), PBES2Count: 1000, PBES2Salt: []byte("sixteen bytes...")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := encrypter.Encrypt([]byte(jwk(jose.JSONWebKey{Key: p256, KeyID: "one"})))
	if err != nil {
		t.Fatal(err)
	}
	compact, err := sealed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text, password, algorithm, id, says string
	}{
		"PKCS #8":           {text: pemOf(t, "PRIVATE KEY", p256), algorithm: "ES256"},
		"SEC 1":             {text: "\n" + pemOf(t, "EC PRIVATE KEY", p256), algorithm: "ES256"},
		"PKCS #1":           {text: pemOf(t, "RSA PRIVATE KEY", rsaKey), algorithm: "RS256"},
		"JWK":               {text: jwk(jose.JSONWebKey{Key: p256, KeyID: "one", Algorithm: "ES256"}), algorithm: "ES256", id: "one"},
		"Ed25519":           {text: jwk(jose.JSONWebKey{Key: ed, KeyID: "one"}), algorithm: "EdDSA", id: "one"},
		"encrypted":         {text: compact, password: "password", algorithm: "ES256", id: "one"},
		"encrypted as JSON": {text: sealed.FullSerialize(), password: "password", algorithm: "ES256", id: "one"},
		"a wrong password":  {text: compact, password: "x", says: "correct one of them"},
		"no password":       {text: compact, says: "jwk.passwordFile"},
		"a public key":      {text: jwk(jose.JSONWebKey{Key: p256.Public()}), says: "not its public one"},
		"a shared secret":   {text: jwk(jose.JSONWebKey{Key: []byte("0123456789abcdef")}), says: "no private key"},
		"P-224":             {text: pemOf(t, "PRIVATE KEY", p224), says: "signs no tokens"},
		"half":              {text: compact[:40], says: "is neither"},
		"half PEM":          {text: pemOf(t, "PRIVATE KEY", p256)[:60], says: "no whole PEM"},
		"a certificate":     {text: signertest.PEM(signertest.NewCA(t, "x").Root)[0], says: `of type "CERTIFICATE"`},
		"broken PEM":        {text: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", says: "cannot be read"},
		"an object":         {text: `{"kty":"x"}`, says: "no JSON Web Key"},
		"nothing":           {text: "", says: "is neither"},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := parseKey([]byte(tc.text), []byte(tc.password))
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want %q", err, tc.says)
				}
				return
			}
			if err != nil || k.Algorithm != tc.algorithm || tc.id != "" && k.KeyID != tc.id || k.KeyID == "" {
				t.Errorf("got %q %q, %v", k.Algorithm, k.KeyID, err)
			}
		})
	}
}

func FuzzAnswers(f *testing.F) {
	ca := signertest.NewCA(f, "upstream")
	r, _ := signertest.Request(f)
	for _, value := range []any{
		map[string]any{"crts": signertest.PEM(ca.Root)},
		map[string]any{"certChain": signertest.PEM(ca.Sign(f, r.Template)...)},
		map[string]any{"crt": signertest.PEM(ca.Sign(f, r.Template)[0])[0], "ca": signertest.PEM(ca.Intermediate)[0]},
	} {
		raw, err := json.Marshal(value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if chain, err := chainOf("step-ca", raw); err == nil && len(chain) == 0 {
			t.Error("a chain without a leaf")
		}
		if roots, _, err := pinned(raw, []string{strings.Repeat("0", 64)}); err == nil {
			t.Errorf("believed %d roots that are not pinned", len(roots))
		}
		_ = said(raw)
	})
}
