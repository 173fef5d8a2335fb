package kubeapi

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime of all certificates: nothing runs that long.
const lifetime = 365 * 24 * time.Hour

// Authority is a certificate authority of Kubernetes or etcd.
type Authority struct {
	Cert *x509.Certificate
	// PEM is Cert.
	PEM []byte
	key *ecdsa.PrivateKey
}

// NewAuthority makes an authority, and writes its certificate and key to dir/name.crt and dir/name.key.
func NewAuthority(dir, name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &Authority{key: key}
	if a.PEM, err = a.sign(template, template, key.Public()); err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	block, _ := pem.Decode(a.PEM)
	if a.Cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, err
	}
	return a, write(dir, name, a.PEM, key)
}

// ReadAuthority reads an authority that NewAuthority has written.
func ReadAuthority(dir, name string) (*Authority, error) {
	cert, key := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	a := &Authority{Cert: pair.Leaf}
	if a.PEM, err = os.ReadFile(cert); err != nil {
		return nil, err
	}
	var ok bool
	if a.key, ok = pair.PrivateKey.(*ecdsa.PrivateKey); !ok {
		return nil, fmt.Errorf("%s: the key is %T, want that of NewAuthority", key, pair.PrivateKey)
	}
	return a, nil
}

func (a *Authority) sign(template, parent *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// Names are those of a serving certificate.
type Names struct {
	DNS []string
	IP  []net.IP
}

// Issue writes a certificate for a user of some groups to dir/file.crt, and its key to dir/file.key. It serves for
// clients, and for servers with the given names.
func (a *Authority) Issue(dir, file, user string, groups []string, serves Names) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		DNSNames: serves.DNS, IPAddresses: serves.IP,
	}, a.Cert, key.Public())
	if err != nil {
		return fmt.Errorf("certificate %s: %w", file, err)
	}
	return write(dir, file, cert, key)
}

// newTokenKey writes the key that signs tokens of service accounts to dir/name.key and dir/name.pub.
func newTokenKey(dir, name string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		0o644); err != nil {
		return err
	}
	return writeKey(dir, name, key)
}

func write(dir, name string, cert []byte, key crypto.PrivateKey) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), cert, 0o644); err != nil {
		return err
	}
	return writeKey(dir, name, key)
}

func writeKey(dir, name string, key crypto.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}
