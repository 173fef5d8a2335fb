package chains

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func ecKey(t *testing.T) crypto.Signer {
	return testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

func rsaKey(t *testing.T) crypto.Signer { return testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t) }

// plugIn writes the files of Istio's Secret cacerts, with an issuing authority that is two below its root. If it is
// crossSigned, the authority in between is a root too, which other peers have instead.
func plugIn(t *testing.T, newKey func(*testing.T) crypto.Signer, crossSigned bool) signing {
	t.Helper()
	dir, rootKey, betweenKey, key := t.TempDir(), newKey(t), newKey(t), newKey(t)
	out := signing{file: fmt.Sprintf("caCerts: {directory: %s}\n", dir)}
	root := authority(t, "root", rootKey, nil, rootKey)
	between := authority(t, "between", betweenKey, root, rootKey)
	if crossSigned {
		out.also = testkit.CertPEM(authority(t, "between", betweenKey, nil, betweenKey))
	}
	issuing := authority(t, "issuing", key, between, betweenKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.NoError(t, err)
	for name, text := range map[string][]byte{
		"ca-cert.pem": testkit.CertPEM(issuing), "root-cert.pem": testkit.CertPEM(root),
		"cert-chain.pem": chainPEM([][]byte{issuing.Raw, between.Raw, root.Raw}),
		"ca-key.pem":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		testkit.WriteFile(t, filepath.Join(dir, name), text)
	}
	return out
}

func authority(t *testing.T, name string, key crypto.Signer, parent *x509.Certificate, signer crypto.Signer) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	testkit.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Example"}, CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	testkit.NoError(t, err)
	return testkit.Must(x509.ParseCertificate(der))(t)
}
