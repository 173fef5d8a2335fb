// Package csr reads certificate requests from callers that are authenticated but not trusted.
//
// Parse returns a request's public key, after its signature has proved that the sender holds the private key, and its
// names as they were written, for package policy to compare with the caller's identity. The subject is ignored, because
// no certificate is built from it. Extensions that ask for more than a workload gets are rejected.
package csr

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"

	"fairlead.dev/services/ca/internal/rejection"
)

const (
	// MaxPEMBytes bounds a request before it is decoded. A request with an RSA key of MaxRSABits is below 4 KiB.
	MaxPEMBytes = 16 << 10
	// MinRSABits is the weakest RSA key accepted.
	MinRSABits = 2048
	// MaxRSABits bounds the work of verifying a signature with the caller's key.
	MaxRSABits = 4096
)

// signatureAlgorithms are those that a request may be signed with: for the keys that checkKey accepts, with a hash
// without known collisions. crypto/x509 would verify SHA-1 as well.
var signatureAlgorithms = []x509.SignatureAlgorithm{
	x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512,
	x509.SHA256WithRSA, x509.SHA384WithRSA, x509.SHA512WithRSA,
	x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS, x509.SHA512WithRSAPSS,
}

// Request is the part of a certificate request that policy reads.
type Request struct {
	// PublicKey is *ecdsa.PublicKey on P-256 or P-384, or *rsa.PublicKey of MinRSABits to MaxRSABits.
	PublicKey any
	// Names are the subject alternative names as they were written.
	Names Names
	// DER is the request itself.
	DER []byte
}

// Parse decodes one PEM request and verifies its signature. Its errors are rejections of kind Invalid.
func Parse(text string) (*Request, error) {
	der, err := decodePEM(text)
	if err != nil {
		return nil, err
	}
	raw, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr is not a PKCS#10 certificate request: %v", err)
	}
	// The key first: it bounds the cost of checking the signature.
	if err := checkKey(raw.PublicKey); err != nil {
		return nil, err
	}
	if !slices.Contains(signatureAlgorithms, raw.SignatureAlgorithm) {
		return nil, rejection.New(rejection.Invalid, rejection.CSRSignature,
			"csr is signed with %s; sign it with ECDSA or RSA and SHA-256, SHA-384 or SHA-512", raw.SignatureAlgorithm)
	}
	if err := raw.CheckSignature(); err != nil {
		return nil, rejection.New(rejection.Invalid, rejection.CSRSignature,
			"csr signature does not verify with the key in the csr: %v; sign the csr with the private key of its public key", err)
	}
	names, err := checkExtensions(raw.Extensions)
	if err != nil {
		return nil, err
	}
	return &Request{PublicKey: raw.PublicKey, Names: names, DER: raw.Raw}, nil
}

func decodePEM(text string) ([]byte, error) {
	if len(text) > MaxPEMBytes {
		return nil, rejection.New(rejection.Invalid, rejection.CSRTooLarge, "csr has %d bytes, the limit is %d", len(text), MaxPEMBytes)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil {
		return nil, rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr is not PEM; send one CERTIFICATE REQUEST block")
	}
	if block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr is a PEM block of type %q, wanted CERTIFICATE REQUEST",
			block.Type)
	}
	if len(block.Headers) > 0 {
		return nil, rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr has PEM headers, wanted none")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, rejection.New(rejection.Invalid, rejection.CSRMalformed, "csr has %d bytes after its PEM block; send exactly one block",
			len(rest))
	}
	return block.Bytes, nil
}

func checkKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
		return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has an ECDSA key on %s; use P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		switch bits := k.N.BitLen(); {
		case bits < MinRSABits:
			return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has an RSA key of %d bits, the least is %d; use ECDSA P-256", bits,
				MinRSABits)
		case bits > MaxRSABits:
			return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has an RSA key of %d bits, the most is %d; use ECDSA P-256", bits,
				MaxRSABits)
		case k.E < 65537 || k.E%2 == 0:
			return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has an RSA key with exponent %d; use 65537", k.E)
		}
		return nil
	case ed25519.PublicKey:
		return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has an Ed25519 key, which proxies cannot use; use ECDSA P-256")
	default:
		return rejection.New(rejection.Invalid, rejection.CSRKey, "csr has a key of an unknown algorithm; use ECDSA P-256")
	}
}
