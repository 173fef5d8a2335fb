package mesh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// authority is a root that is kept outside of the clusters, as Istio's guide of plugged-in certificates makes one.
type authority struct{ *testkit.CA }

func newAuthority(t *testing.T) *authority { return &authority{testkit.PKI(t)} }

// cacerts is what Secret cacerts of a cluster has: a certificate of the cluster's own, by the root.
func (a *authority) cacerts(t *testing.T, cluster string) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	testkit.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Istio"}, CommonName: "Intermediate CA", Locality: []string{cluster}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(2, 0, 0), IsCA: true, BasicConstraintsValid: true,
		MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}, a.Cert, key.Public(), a.Key)
	testkit.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	own := testkit.CertPEM(cert)
	return map[string][]byte{"ca-cert.pem": own, "ca-key.pem": testkit.KeyPEM(t, key), "root-cert.pem": a.RootPEM,
		"cert-chain.pem": slices.Concat(own, a.RootPEM)}
}
