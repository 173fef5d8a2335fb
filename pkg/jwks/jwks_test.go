package jwks_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/testkit"
)

// document writes a key as an issuer does.
func document(t testing.TB, value any, id, alg string) string {
	t.Helper()
	return string(testkit.Must(json.Marshal(jose.JSONWebKey{Key: value, KeyID: id, Algorithm: alg, Use: "sig"}))(t))
}

func set(keys ...string) []byte { return []byte(`{"keys":[` + strings.Join(keys, ",") + `]}`) }

// with adds members to a key.
func with(k, members string) string { return strings.TrimSuffix(k, "}") + "," + members + "}" }

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	return testkit.Must(rsa.GenerateKey(rand.Reader, bits))(t)
}

func TestUsableKeysAreKept(t *testing.T) {
	own := rsaKey(t, 2048)
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		key crypto.PublicKey
		alg string
	}{
		"RSA":                   {own.Public(), "RS256"},
		"RSA with PSS":          {own.Public(), "PS512"},
		"RSA for any algorithm": {own.Public(), ""},
		"P-256":                 {testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t).Public(), "ES256"},
		"P-384":                 {testkit.Must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t).Public(), "ES384"},
		"P-521":                 {testkit.Must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t).Public(), ""},
		"Ed25519":               {edwards, "EdDSA"},
		"RSA of the least size": {&rsa.PublicKey{N: odd(jwks.MinRSABits), E: 65537}, ""},
		"RSA of the most size":  {&rsa.PublicKey{N: odd(jwks.MaxRSABits), E: 3}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := jwks.Parse(set(document(t, tc.key, "a", tc.alg)))
			if err != nil || got.Count != 1 || len(got.Dropped) > 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			var back jose.JSONWebKeySet
			if err := json.Unmarshal(got.Keys, &back); err != nil || len(back.Keys) != 1 {
				t.Fatalf("%s: %v", got.Keys, err)
			}
			k := back.Keys[0]
			if same, ok := k.Key.(interface{ Equal(crypto.PublicKey) bool }); !ok || !same.Equal(tc.key) || k.KeyID != "a" || k.Algorithm != tc.alg {
				t.Errorf("%s is another key", got.Keys)
			}
		})
	}
}

func odd(bits int) *big.Int {
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits)-1)
	return n.SetBit(n, 0, 1)
}

func TestKeysThatCannotBeUsedAreDropped(t *testing.T) {
	good := document(t, rsaKey(t, 2048).Public(), "good", "")
	ec := document(t, testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t).Public(), "ec", "")
	for name, tc := range map[string]struct{ key, want string }{
		"no object":           {`"key"`, "no JSON object"},
		"null":                {`null`, "no JSON object"},
		"no type":             {`{"kid":"x"}`, `kty ""`},
		"unknown type":        {`{"kty":"AKP","kid":"x"}`, `(kid "x"): kty "AKP" is none of`},
		"type in capitals":    {strings.Replace(good, `"kty"`, `"KTY"`, 1), `kty ""`},
		"a secret":            {`{"kty":"oct","k":"c2VjcmV0"}`, "kty oct is a secret"},
		"for encryption":      {strings.Replace(good, `"sig"`, `"enc"`, 1), `use "enc"`},
		"for signing alone":   {with(good, `"key_ops":["sign"]`), "key_ops"},
		"key_ops of no list":  {with(good, `"key_ops":"verify"`), "key_ops"},
		"for encryption, alg": {with(good, `"alg":"RSA-OAEP"`), `alg "RSA-OAEP" does not fit`},
		"alg of another type": {with(good, `"alg":"ES256"`), `alg "ES256" does not fit`},
		"alg none":            {with(good, `"alg":"none"`), `alg "none"`},
		"alg of an HMAC":      {with(good, `"alg":"HS256"`), `alg "HS256"`},
		"alg of no text":      {with(good, `"alg":7`), "alg is no text"},
		"alg of another size": {with(ec, `"alg":"ES384"`), `want ES256`},
		"kid of no text":      {with(`{"kty":"RSA"}`, `"kid":{}`), "kid is no text"},
		"a long kid":          {with(`{"kty":"RSA"}`, `"kid":"`+strings.Repeat("k", jwks.MaxID+1)+`"`), "kid has 1025 bytes"},
		"a short RSA key":     {document(t, &rsa.PublicKey{N: odd(jwks.MinRSABits - 1), E: 3}, "", ""), "has 1023 bits"},
		"a huge RSA key":      {document(t, &rsa.PublicKey{N: odd(jwks.MaxRSABits + 1), E: 3}, "", ""), "has 8193 bits"},
		"an even modulus":     {document(t, &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 3}, "", ""), "does not take such a key"},
		"an even exponent":    {document(t, &rsa.PublicKey{N: odd(2048), E: 4}, "", ""), "does not take such a key"},
		"exponent 65":         {document(t, &rsa.PublicKey{N: odd(2048), E: 65}, "", ""), "does not take such a key"},
		"exponent 1":          {document(t, &rsa.PublicKey{N: odd(2048), E: 1}, "", ""), "does not take such a key"},
		"no exponent":         {`{"kty":"RSA","n":"AQAB"}`, "e is missing"},
		"no base64":           {`{"kty":"RSA","n":"!!","e":"AQAB"}`, "broken"},
		"a huge exponent":     {`{"kty":"RSA","n":"AQAB","e":"` + strings.Repeat("A", 100) + `B"}`, ""},
		"an unknown curve":    {`{"kty":"EC","crv":"secp256k1","x":"AQ","y":"AQ"}`, "broken"},
		"not on the curve":    {fmt.Sprintf(`{"kty":"EC","crv":"P-256","x":%q,"y":%q}`, half(1), half(1)), "broken"},
		"a short coordinate":  {`{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}`, "broken"},
		"Ed25519 of 31 bytes": {`{"kty":"OKP","crv":"Ed25519","x":"` + base64.RawURLEncoding.EncodeToString(make([]byte, 31)) + `"}`, ""},
		"X25519":              {`{"kty":"OKP","crv":"X25519","x":"` + half(1) + `"}`, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			alone, err := jwks.Parse(set(tc.key))
			if !errors.Is(err, jwks.ErrNoKeys) || !strings.Contains(err.Error(), tc.want) || alone.Keys != nil || alone.Count != 0 {
				t.Errorf("alone: %s, %v; want %q", alone.Keys, err, tc.want)
			}
			beside, err := jwks.Parse(set(tc.key, good))
			if err != nil || beside.Count != 1 || len(beside.Dropped) != 1 || !strings.Contains(beside.Dropped[0].String(), tc.want) ||
				!strings.HasPrefix(beside.Dropped[0].String(), "keys[0]") {
				t.Errorf("beside a good key: %+v, %v; want %q", beside, err, tc.want)
			}
		})
	}
}

func half(b byte) string {
	out := make([]byte, 32)
	out[31] = b
	return base64.RawURLEncoding.EncodeToString(out)
}

func TestAKeyAloneIsASetOfOne(t *testing.T) {
	key := document(t, rsaKey(t, 2048).Public(), "a", "RS256")
	want, err := jwks.Parse(set(key))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := jwks.Parse([]byte(key)); err != nil || string(got.Keys) != string(want.Keys) || got.Count != 1 {
		t.Errorf("%s, %v; want %s", got.Keys, err, want.Keys)
	}
	if got, err := jwks.Parse([]byte(`{"kty":"oct","k":"c2VjcmV0"}`)); !errors.Is(err, jwks.ErrNoKeys) || len(got.Dropped) != 1 {
		t.Errorf("a secret: %+v, %v", got, err)
	}
}

func TestADocumentWithoutKeysIsAnError(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"nothing":         {"", "no JSON object"},
		"a page":          {"<html>sign in</html>", "no JSON object"},
		"a list":          {"[]", "no JSON object"},
		"null":            {"null", "is empty"},
		"an empty object": {"{}", "is empty"},
		"an empty set":    {`{"keys":[]}`, "is empty"},
		"no list":         {`{"keys":{}}`, "no list"},
		"null keys":       {`{"keys":null}`, "is empty"},
		"another object":  {`{"issuer":"x"}`, "no member keys"},
		"two documents":   {`{"keys":[]}{"keys":[]}`, "no JSON object"},
		"too many keys":   {string(set(strings.TrimSuffix(strings.Repeat("{},", jwks.MaxKeys+1), ","))), "at most 256"},
		"too large":       {strings.Repeat(" ", jwks.MaxBytes+1), "at most 1048576"},
		"many bad keys":   {string(set(strings.TrimSuffix(strings.Repeat("{},", 20), ","))), "15 more"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := jwks.Parse([]byte(tc.raw))
			if !errors.Is(err, jwks.ErrNoKeys) || !strings.Contains(err.Error(), tc.want) || got.Keys != nil {
				t.Errorf("%s, %v; want %q", got.Keys, err, tc.want)
			}
		})
	}
}

func TestTheFormDependsOnTheKeysAlone(t *testing.T) {
	first, second := rsaKey(t, 2048), testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	a, b := document(t, first.Public(), "a", "RS256"), document(t, second.Public(), "b", "")
	want := testkit.Must(jwks.Parse(set(a, b)))(t)
	for name, raw := range map[string][]byte{
		"another order":      set(b, a),
		"spaces":             []byte(strings.ReplaceAll(string(set(a, b)), ",", " ,\n")),
		"a key twice":        set(b, a, b),
		"unknown members":    set(with(a, `"x5t":"abc","nbf":17`), b),
		"bad keys beside":    set(`{"kty":"AKP"}`, a, `7`, b),
		"without a use":      set(strings.Replace(a, `"use":"sig",`, "", 1), b),
		"private members":    set(document(t, first, "a", "RS256"), document(t, second, "b", "")),
		"members of the set": []byte(strings.Replace(string(set(a, b)), `{"keys"`, `{"issuer":"x","keys"`, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := jwks.Parse(raw)
			if err != nil || string(got.Keys) != string(want.Keys) || got.Count != 2 {
				t.Errorf("%s, %v\nwant %s", got.Keys, err, want.Keys)
			}
			again, err := jwks.Parse(got.Keys)
			if err != nil || string(again.Keys) != string(got.Keys) {
				t.Errorf("read again: %s, %v", again.Keys, err)
			}
		})
	}
	if other := testkit.Must(jwks.Parse(set(a)))(t); string(other.Keys) == string(want.Keys) {
		t.Error("another set has the same form")
	}
}

func TestCertificatesAreKeysByName(t *testing.T) {
	own := rsaKey(t, 2048)
	der := testkit.Must(x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, own.Public(), own))(t)
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	got, err := jwks.Parse(testkit.Must(json.Marshal(map[string]string{"a": text, "b": "-----BEGIN CERTIFICATE-----"}))(t))
	want := testkit.Must(jwks.Parse(set(document(t, own.Public(), "a", ""))))(t)
	if err != nil || string(got.Keys) != string(want.Keys) || len(got.Dropped) != 1 || !strings.Contains(got.Dropped[0].String(), `certificate "b"`) {
		t.Errorf("%+v, %v; want %s", got, err, want.Keys)
	}
}

// Whatever somebody publishes: the form is stable, bounded, and has no private member.
func FuzzParse(f *testing.F) {
	own := rsaKey(f, 2048)
	f.Add(set(document(f, own, "a", "RS256")))
	f.Add(set(document(f, own.Public(), "a", "RS256"), `{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}`))
	f.Add(set(`{"kty":"OKP","crv":"Ed25519","x":"` + half(1) + `"}`))
	f.Add([]byte(`{"a":"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"}`))
	f.Add([]byte(`{"keys":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := jwks.Parse(raw)
		if (err == nil) != (got.Count > 0) || (err == nil) != (len(got.Keys) > 0) || got.Count > jwks.MaxKeys {
			t.Fatalf("%d keys, %q, %v", got.Count, got.Keys, err)
		}
		if err != nil {
			if !errors.Is(err, jwks.ErrNoKeys) {
				t.Fatal(err)
			}
			return
		}
		var back struct{ Keys []map[string]string }
		if err := json.Unmarshal(got.Keys, &back); err != nil || len(back.Keys) != got.Count {
			t.Fatalf("%s: %v", got.Keys, err)
		}
		for _, k := range back.Keys {
			for _, private := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"} {
				if _, has := k[private]; has {
					t.Fatalf("%s has member %s", got.Keys, private)
				}
			}
		}
		again, err := jwks.Parse(got.Keys)
		if err != nil || string(again.Keys) != string(got.Keys) || len(again.Dropped) > 0 {
			t.Fatalf("%s becomes %s, %v", got.Keys, again.Keys, err)
		}
	})
}
