package jwks

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// key is a public key with the members that Envoy reads, in the order in which they are written. The name comes first,
// so that keys sort by it.
type key struct {
	ID        string `json:"kid,omitempty"`
	Type      string `json:"kty"`
	Algorithm string `json:"alg,omitempty"`
	Curve     string `json:"crv,omitempty"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

// public are the members that a public key of a type consists of.
var public = map[string][]string{"RSA": {"n", "e"}, "EC": {"crv", "x", "y"}, "OKP": {"crv", "x"}}

// parseKey reads one key of a set. With an error the key has its ID, if that could be read.
func parseKey(raw json.RawMessage) (k key, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return k, errors.New("is no JSON object")
	}
	var use string
	for name, to := range map[string]*string{"kid": &k.ID, "kty": &k.Type, "alg": &k.Algorithm, "use": &use} {
		if e := text(members, name, to); e != nil {
			err = e
		}
	}
	if len(k.ID) > MaxID {
		id := k.ID
		k.ID = clip(id)
		return k, fmt.Errorf("kid has %d bytes; at most %d are read", len(id), MaxID)
	}
	if err != nil {
		return k, err
	}
	names, known := public[k.Type]
	switch {
	case k.Type == "oct":
		return k, errors.New("kty oct is a secret shared with the issuer: whoever reads it can make tokens; use a public key")
	case !known:
		return k, fmt.Errorf("kty %q is none of RSA, EC and OKP", clip(k.Type))
	case use != "" && use != "sig":
		return k, fmt.Errorf("use %q: the key is not for signatures", clip(use))
	}
	if ops, has := members["key_ops"]; has {
		var list []string
		if json.Unmarshal(ops, &list) != nil || !slices.Contains(list, "verify") {
			return k, errors.New("key_ops does not have verify: the key is not for verifying signatures")
		}
	}
	only := map[string]json.RawMessage{"kty": members["kty"]} // never a private member
	for _, name := range names {
		only[name] = members[name]
		var value string
		if e := text(members, name, &value); e != nil || value == "" {
			return k, fmt.Errorf("%s is missing or no text", name)
		}
	}
	plain, err := json.Marshal(only)
	if err != nil {
		return k, err
	}
	var parsed jose.JSONWebKey
	if err := json.Unmarshal(plain, &parsed); err != nil {
		return k, fmt.Errorf("the key is broken: %w", err)
	}
	return fill(k, parsed.Key)
}

// text reads a member that is a text, if it is there.
func text(members map[string]json.RawMessage, name string, to *string) error {
	raw, has := members[name]
	if !has {
		return nil
	}
	if err := json.Unmarshal(raw, to); err != nil || string(raw) == "null" {
		return fmt.Errorf("%s is no text", name)
	}
	return nil
}

// parseCertificate reads a member of a document of certificates. It reports whether the member looks like one.
func parseCertificate(name string, raw json.RawMessage) (k key, certificate bool, err error) {
	var value string
	if json.Unmarshal(raw, &value) != nil || !strings.HasPrefix(value, "-----BEGIN CERTIFICATE-----") {
		return k, false, nil //nolint:nilerr // another member
	}
	k.ID = clip(name)
	if len(name) > MaxID {
		return k, true, fmt.Errorf("the name has %d bytes; at most %d are read", len(name), MaxID)
	}
	k.ID = name
	block, _ := pem.Decode([]byte(value))
	if block == nil {
		return k, true, errors.New("is no PEM")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return k, true, err
	}
	k, err = fill(k, parsed.PublicKey)
	return k, true, err
}

// algorithms are those that the keys of a type, or of a curve, may name.
var algorithms = map[string][]string{
	"RSA": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, "P-256": {"ES256"}, "P-384": {"ES384"}, "P-521": {"ES512"},
	"Ed25519": {"EdDSA"},
}

// fill checks a public key and writes its numbers into k.
func fill(k key, value any) (key, error) {
	family := ""
	switch p := value.(type) {
	case *rsa.PublicKey:
		if bits := p.N.BitLen(); bits < MinRSABits || bits > MaxRSABits {
			return k, fmt.Errorf("the RSA key has %d bits; want %d to %d", bits, MinRSABits, MaxRSABits)
		}
		// What BoringSSL takes, and so Envoy.
		if p.N.Bit(0) == 0 || p.E != 3 && p.E != 65537 {
			return k, errors.New("the modulus is even, or the exponent neither 3 nor 65537: Envoy does not take such a key")
		}
		family, k.Type = "RSA", "RSA"
		k.N, k.E = encode(p.N.Bytes()), encode(big.NewInt(int64(p.E)).Bytes())
	case *ecdsa.PublicKey:
		point, err := p.Bytes() // fails for a point that is not on the curve
		if err != nil {
			return k, fmt.Errorf("the EC key is broken: %w", err)
		}
		point = point[1:]
		family, k.Type, k.Curve = p.Curve.Params().Name, "EC", p.Curve.Params().Name
		k.X, k.Y = encode(point[:len(point)/2]), encode(point[len(point)/2:])
	case ed25519.PublicKey:
		family, k.Type, k.Curve, k.X = "Ed25519", "OKP", "Ed25519", encode(p)
	default:
		return k, fmt.Errorf("is a key of type %T; want RSA, EC or Ed25519", value)
	}
	allowed, known := algorithms[family]
	switch {
	case !known:
		return k, fmt.Errorf("crv %q is none of P-256, P-384, P-521 and Ed25519", family)
	case k.Algorithm != "" && !slices.Contains(allowed, k.Algorithm):
		return k, fmt.Errorf("alg %q does not fit the key; want %s", clip(k.Algorithm), strings.Join(allowed, ", "))
	}
	return k, nil
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
