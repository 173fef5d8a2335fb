package keys

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/keystest"
)

func TestKeysOfAllAlgorithmsAreReadAgain(t *testing.T) {
	for _, a := range []signer.Algorithm{signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048, signer.RSA3072, signer.RSA4096} {
		key, err := Generate(a)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Encode(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(text)
		if err != nil || !keystest.SameKey(key, again) {
			t.Errorf("%s: %v", a, err)
		}
		if err := keystest.Signs(again); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func pkcs8(t testing.TB, key any, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// weakRSA is a key of 1024 bits, which Go makes only with a setting of the process.
func weakRSA(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestDecodeRefuses(t *testing.T) {
	key := func(key any, err error) string { return pkcs8(t, key, err) }
	good := key(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	for name, tc := range map[string]struct{ text, says string }{
		"nothing":          {"", "PEM"},
		"half":             {good[:len(good)/2], "PEM"},
		"a certificate":    {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("secret")})), "PRIVATE KEY"},
		"a damaged key":    {string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})), "PKCS#8"},
		"two keys":         {good + good, "more than one"},
		"P-224":            {key(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)), "P-224"},
		"P-521":            {key(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)), "P-521"},
		"RSA of 1024 bits": {key(weakRSA(t), nil), "1024 bits"},
		"Ed25519":          {key(edwards, err), "ed25519"},
		"X25519":           {key(ecdh.X25519().GenerateKey(rand.Reader)), "cannot sign"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(pkcs8(f, must(f, signer.ECDSAP256), nil)))
	f.Add([]byte(pkcs8(f, must(f, signer.RSA2048), nil)))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := Decode(text)
		if (key == nil) == (err == nil) {
			t.Fatalf("%v, %v", key, err)
		}
		if err == nil && CheckPublic(key.Public()) != nil {
			t.Fatal("a weak key was taken")
		}
	})
}

func must(t testing.TB, a signer.Algorithm) crypto.Signer {
	t.Helper()
	key, err := Generate(a)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
