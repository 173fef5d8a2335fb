package svid

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// Sizes of RSA keys that a Manager makes, those that the ca signs for.
const (
	MinRSABits = 2048
	MaxRSABits = 4096
)

// KeyType says which private keys a Manager makes, and how it encodes them in PEM. The zero value is ECDSA on P-256, as
// PKCS #8.
type KeyType struct {
	// RSABits makes RSA keys of this size, MinRSABits to MaxRSABits; 0 makes ECDSA keys.
	RSABits int
	// Curve of ECDSA keys; nil is P-256.
	Curve elliptic.Curve
	// Traditional encodes RSA keys as PKCS #1 and ECDSA keys as SEC 1.
	Traditional bool
}

func (t KeyType) check() error {
	switch {
	case t.RSABits != 0 && (t.RSABits < MinRSABits || t.RSABits > MaxRSABits):
		return fmt.Errorf("svid: RSA keys of %d bits: want %d to %d", t.RSABits, MinRSABits, MaxRSABits)
	case t.Curve != nil && t.Curve != elliptic.P256() && t.Curve != elliptic.P384():
		return fmt.Errorf("svid: curve %s: want P-256 or P-384", t.Curve.Params().Name)
	default:
		return nil
	}
}

// generate makes a key.
func (t KeyType) generate() (crypto.Signer, error) {
	var key crypto.Signer
	var err error
	switch {
	case t.RSABits != 0:
		key, err = rsa.GenerateKey(rand.Reader, t.RSABits)
	case t.Curve != nil:
		key, err = ecdsa.GenerateKey(t.Curve, rand.Reader)
	default:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

// encode returns a key in PEM.
func (t KeyType) encode(key crypto.Signer) ([]byte, error) {
	block := &pem.Block{Type: "PRIVATE KEY"}
	var err error
	switch k := key.(type) {
	case *rsa.PrivateKey:
		if t.Traditional {
			block = &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)}
		}
	case *ecdsa.PrivateKey:
		if t.Traditional {
			block.Type = "EC PRIVATE KEY"
			block.Bytes, err = x509.MarshalECPrivateKey(k)
		}
	}
	if block.Bytes == nil && err == nil {
		block.Bytes, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}
