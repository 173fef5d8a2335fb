package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// minRSABits is the shortest RSA key that Envoy loads.
const minRSABits = 2048

// secret checks the entries of a Secret that a gateway would read, so that Envoy accepts them. No problem repeats
// any of the content.
func (c checker) secret(s *corev1.Secret) {
	e := object.EntriesOf(s)
	if s.Type == corev1.SecretTypeTLS || e.Chain.Name != "" || e.Key.Name != "" {
		c.keyPair(e, s)
	}
	if e.CA.Name != "" {
		c.certificates(entryPath(s, e.CA.Name), e.CA.Value)
	}
	if e.CRL.Name != "" {
		c.revocations(entryPath(s, e.CRL.Name), e.CRL.Value)
	}
}

// entryPath is the field in which the user has written an entry.
func entryPath(s *corev1.Secret, name string) string {
	if _, ok := s.StringData[name]; ok {
		return manifest.Field("stringData", name)
	}
	return manifest.Field("data", name)
}

func (c checker) keyPair(e object.Entries, s *corev1.Secret) {
	const together = "a certificate and its key go together: set tls.crt and tls.key"
	if e.Chain.Name == "" {
		c.Fail(entryPath(s, corev1.TLSCertKey), nil, "missing or empty", together)
	}
	if e.Key.Name == "" {
		c.Fail(entryPath(s, corev1.TLSPrivateKeyKey), nil, "missing or empty", together)
	}
	if e.Chain.Name == "" || e.Key.Name == "" {
		return
	}
	chainPath, keyPath := entryPath(s, e.Chain.Name), entryPath(s, e.Key.Name)
	leaf := c.certificates(chainPath, e.Chain.Value)
	if block, _ := pem.Decode(e.Key.Value); block == nil {
		c.Fail(keyPath, nil, "no PEM",
			`write the key as PEM, "-----BEGIN PRIVATE KEY-----" and so on, base64-encoded once under data or as it is under stringData`)
		return
	} else if strings.Contains(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
		c.Fail(keyPath, nil, "the key is encrypted", "store it without a passphrase")
		return
	}
	if leaf == nil {
		return
	}
	switch public := leaf.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < minRSABits {
			c.Fail(chainPath, nil, fmt.Sprintf("RSA key of %d bits", bits),
				fmt.Sprintf("use one of %d bits at least: Envoy refuses shorter ones", minRSABits))
			return
		}
	case *ecdsa.PublicKey:
		if curve := public.Curve; curve != elliptic.P256() && curve != elliptic.P384() && curve != elliptic.P521() {
			c.Fail(chainPath, nil, "key on curve "+curve.Params().Name, "use P-256, P-384 or P-521")
			return
		}
	default:
		c.Fail(chainPath, nil, "key of a kind that Envoy does not load ("+leaf.PublicKeyAlgorithm.String()+")", "use RSA or ECDSA")
		return
	}
	// The error is not repeated: it describes the key.
	if _, err := tls.X509KeyPair(e.Chain.Value, e.Key.Value); err != nil {
		c.Fail(keyPath, nil, "the key cannot be read, or is not that of the first certificate in "+e.Chain.Name,
			"store the certificate and the key that it was issued for; the chain starts with the server's own certificate")
	}
}

// certificates checks PEM certificates and returns the first one.
func (c checker) certificates(path string, content []byte) (first *x509.Certificate) {
	count := 0
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			if strings.Contains(block.Type, "PRIVATE KEY") {
				c.Fail(path, nil, "holds a private key", "keep the key in an entry of its own")
				return nil
			}
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			c.Fail(path, nil, fmt.Sprintf("certificate %d cannot be read: %s", count+1, object.Cut(err.Error(), 100)),
				"store certificates as their issuer has given them")
			return nil
		}
		if count++; first == nil {
			first = cert
		}
	}
	if first == nil {
		c.Fail(path, nil, "no certificate in PEM",
			`write it as PEM, "-----BEGIN CERTIFICATE-----" and so on, base64-encoded once under data or as it is under stringData`)
	}
	return first
}

func (c checker) revocations(path string, content []byte) {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "X509 CRL" {
		c.Fail(path, nil, "no revocation list in PEM", `write it as PEM, "-----BEGIN X509 CRL-----" and so on`)
		return
	}
	if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
		c.Fail(path, nil, "the revocation list cannot be read", "store it as its issuer has given it")
	}
}
