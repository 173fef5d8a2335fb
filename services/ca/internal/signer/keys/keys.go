// Package keys has what every KeyManager does in the same way: which names and keys it takes, how it makes a key in
// memory, and the PEM text of one.
package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/services/ca/internal/signer"
)

const (
	pemType = "PRIVATE KEY"
	// maxRSABits bounds keys that are found: one signature with a longer key takes tens of milliseconds.
	maxRSABits = 8192
	minRSABits = 2048
)

// CheckName returns an error unless the name of a key is a DNS label (RFC 1123), which every store of keys can have.
func CheckName(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("the name of a key must be a DNS label, and %.80q is none: %s", name, problems[0])
	}
	return nil
}

// CheckAlgorithm returns an error unless keys of the algorithm can be made.
func CheckAlgorithm(a signer.Algorithm) error {
	switch a {
	case signer.ECDSAP256, signer.ECDSAP384, signer.RSA2048, signer.RSA3072, signer.RSA4096:
		return nil
	}
	return fmt.Errorf("no key of algorithm %.80q can be made; use %s, %s, %s, %s or %s", a, signer.ECDSAP256, signer.ECDSAP384,
		signer.RSA2048, signer.RSA3072, signer.RSA4096)
}

// CheckPublic returns an error if the ca must not sign with the private key of this public one: it is weak, or of a
// kind that not every proxy verifies.
func CheckPublic(public crypto.PublicKey) error {
	const remedy = "make one of ECDSA P-256 or P-384, or of RSA with 2048 to 8192 bits"
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return nil
		}
		return fmt.Errorf("is an ECDSA key on the curve %s; %s", key.Curve.Params().Name, remedy)
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("is an RSA key of %d bits; %s", bits, remedy)
		}
		return nil
	}
	return fmt.Errorf("is a key of a kind that the ca does not sign with (%T); %s", public, remedy)
}

// Generate makes a key in memory.
func Generate(a signer.Algorithm) (crypto.Signer, error) {
	switch a {
	case signer.ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case signer.ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case signer.RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case signer.RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case signer.RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	}
	return nil, CheckAlgorithm(a)
}

// Encode returns the PEM text of a private key, in PKCS#8.
func Encode(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), nil
}

// Decode reads what Encode writes. It refuses keys that CheckPublic does. Its errors leave the parser's message out,
// because that could quote the key.
func Decode(text []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != pemType {
		return nil, errors.New("is not a PEM block of type " + pemType)
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, errors.New("has more than one PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is not a PKCS#8 private key")
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("is a key that cannot sign (%T)", parsed)
	}
	if err := CheckPublic(key.Public()); err != nil {
		return nil, err
	}
	return key, nil
}
