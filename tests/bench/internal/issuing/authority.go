// Package issuing compares what an issued certificate costs: in Fairlead's ca, in istiod, in step-ca and in SPIRE, and
// at least, in the floor, which checks a request and signs a certificate in one process without a network. All have
// the same root, the same intermediate and its key, the same requests, and the same core in turn.
package issuing

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
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Kinds of an Authority's intermediate.
const (
	ECDSA = "ECDSA P-256"
	RSA   = "RSA-2048"
)

// Authority is a root and an intermediate, in the files of Istio's Secret cacerts.
type Authority struct {
	Dir          string
	Root         *x509.Certificate
	Intermediate *x509.Certificate
	Key          crypto.Signer
}

// NewAuthority makes an Authority whose keys are of a kind, in a new directory.
func NewAuthority(dir, kind string) (*Authority, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{Dir: dir}
	rootKey, err := newKey(kind)
	if err != nil {
		return nil, err
	}
	if a.Key, err = newKey(kind); err != nil {
		return nil, err
	}
	if a.Root, err = authority("root", nil, rootKey, rootKey); err != nil {
		return nil, err
	}
	if a.Intermediate, err = authority("intermediate", a.Root, a.Key, rootKey); err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(a.Key)
	if err != nil {
		return nil, err
	}
	intermediate, root := certPEM(a.Intermediate), certPEM(a.Root)
	for name, text := range map[string][]byte{
		"ca-cert.pem": intermediate, "cert-chain.pem": append(append([]byte{}, intermediate...), root...), "root-cert.pem": root,
		"ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		if err := os.WriteFile(a.File(name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// File is the path of one of its files.
func (a *Authority) File(name string) string { return filepath.Join(a.Dir, name) }

// Roots is a pool with the root.
func (a *Authority) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Root)
	return pool
}

func newKey(kind string) (crypto.Signer, error) {
	switch kind {
	case ECDSA:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA:
		return rsa.GenerateKey(rand.Reader, 2048)
	}
	return nil, fmt.Errorf("no kind of keys %q", kind)
}

// authority makes the certificate of an authority; parent nil: a root.
func authority(name string, parent *x509.Certificate, key, signer crypto.Signer) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{Organization: []string{"Fairlead's benchmark"}, CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// Workload is one of those that ask for certificates.
type Workload struct {
	Namespace, Account string
	Key                *ecdsa.PrivateKey
	// CSR is its request in PEM.
	CSR string
}

// NewWorkload makes workload number n, with its key.
func NewWorkload(n int) (*Workload, error) {
	w := &Workload{Namespace: "bench", Account: fmt.Sprintf("workload-%d", n)}
	var err error
	if w.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	return w, w.ask()
}

// ask writes the request, with the workload's name.
func (w *Workload) ask() error {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{w.URI()}}, w.Key)
	w.CSR = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return err
}

// URI is its SPIFFE ID.
func (w *Workload) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: "/ns/" + w.Namespace + "/sa/" + w.Account}
}

const trustDomain = "cluster.local"
