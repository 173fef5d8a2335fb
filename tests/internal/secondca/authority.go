package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// maxTTL of a leaf, and its lifetime if none is asked for; early is how long before now it begins.
const (
	maxTTL = 24 * time.Hour
	early  = 2 * time.Minute
	// self is the ca's own name.
	self = "istio-system/ca"
)

// authority is the root.
type authority struct {
	options
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool

	mu   sync.Mutex
	leaf *tls.Certificate
}

// openAuthority reads the root of the directory, or makes one.
func openAuthority(o options) (*authority, error) {
	file := filepath.Join(o.dir, "second.pem")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = newRoot(o.domain); err == nil {
			err = errors.Join(os.MkdirAll(o.dir, 0o700), replace(file, text, 0o600))
		}
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New(file + ": the key is not ECDSA")
	}
	a := &authority{options: o, cert: pair.Leaf, key: key, pool: x509.NewCertPool()}
	a.pool.AddCert(a.cert)
	return a, nil
}

func newRoot(domain string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "second ca", Organization: []string{domain}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, URIs: []*url.URL{{Scheme: "spiffe", Host: domain}},
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return append(encode(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), err
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // crypto/rand does not fail
	return n.Add(n, big.NewInt(1))
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *authority) rootPEM() []byte { return encode(a.cert.Raw) }

// sign signs a leaf of a service account, namespace/name.
func (a *authority) sign(account string, public crypto.PublicKey, ttl time.Duration) ([]byte, error) {
	if ttl <= 0 || ttl > maxTTL {
		ttl = maxTTL
	}
	namespace, name := filepath.Split(account)
	leaf := &x509.Certificate{
		SerialNumber: serial(), NotBefore: time.Now().Add(-early), NotAfter: time.Now().Add(ttl), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{{Scheme: "spiffe", Host: a.domain, Path: "/ns/" + namespace + "sa/" + name}}, DNSNames: a.dns[account],
	}
	for _, text := range a.ips[account] {
		leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(text))
	}
	return x509.CreateCertificate(rand.Reader, leaf, a.cert, public, a.key)
}

// own is the ca's own certificate, renewed at half of its life.
func (a *authority) own() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && time.Until(a.leaf.Leaf.NotAfter) > maxTTL/2 {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := a.sign(self, key.Public(), maxTTL)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	a.leaf = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}
	return a.leaf, err
}

// generation of the bundle: it never changes.
const generation = 1

// bundle is the trust bundle, signed as ca.proto says.
func (a *authority) bundle() (*cav1.SignedBundle, error) {
	own, err := a.own()
	if err != nil {
		return nil, err
	}
	text, err := proto.Marshal(&cav1.TrustBundle{
		TrustDomain: a.domain, Epoch: generation, Generation: generation, RootCertificates: [][]byte{a.cert.Raw}, SignedAt: timestamppb.Now(),
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte("fairlead.ca.v1.SignedBundle\x00"), text...))
	key, _ := own.PrivateKey.(*ecdsa.PrivateKey) // own makes no other
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	return &cav1.SignedBundle{Bundle: text, Signature: signature, CertificateChain: own.Certificate}, err
}
