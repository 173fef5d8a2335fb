package store

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/signer/keys"
)

// rootClockSkew is the clock skew that a new root allows for: it is valid from that long before it was made. The flag
// --clock-skew is about issued certificates only.
const rootClockSkew = 10 * time.Minute

// newRoot makes a self-signed ECDSA P-256 certificate. Its URI is the trust domain's, as SPIFFE demands of a signing
// certificate (X509-SVID, section 2), and its organisation is the trust domain too, as in Istio's roots.
func newRoot(td spiffeid.TrustDomain, now time.Time, ttl time.Duration) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{Organization: []string{td.Name()}, CommonName: "Fairlead root"},
		URIs:                  []*url.URL{td.ID().URL()},
		NotBefore:             now.UTC().Truncate(time.Second).Add(-rootClockSkew),
		NotAfter:              now.UTC().Truncate(time.Second).Add(ttl),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign: %w", err)
	}
	return key, der, nil
}

// load reads the root. It is an error if the root would sign certificates that nobody can verify, or if others than the
// ca's user could have read or replaced a file.
func load(folder string, cfg Config) (*Root, error) {
	if err := private.CheckDir(folder); err != nil {
		return nil, err
	}
	keyPath, certPath := filepath.Join(folder, keyName), filepath.Join(folder, certName)
	keyPEM, err := private.Read(keyPath)
	if err != nil {
		return nil, explainMissing(err, folder)
	}
	certPEM, err := private.Read(certPath)
	if err != nil {
		return nil, explainMissing(err, folder)
	}
	key, err := decodeKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore the file from a backup", keyPath, err)
	}
	cert, err := decodeCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore the file from a backup", certPath, err)
	}
	if public, ok := key.Public().(*ecdsa.PublicKey); !ok || !public.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s; restore both files from the same backup", keyPath, certPath)
	}
	if err := checkRoot(cert, cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	return &Root{Certificate: cert, Key: key, CertPEM: encodeCertificate(cert.Raw)}, nil
}

func checkRoot(cert *x509.Certificate, cfg Config) error {
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("is not the certificate of a certificate authority (CA:TRUE, keyCertSign); restore the file from a backup")
	case cert.CheckSignatureFrom(cert) != nil:
		return errors.New("is not signed by itself; restore the file from a backup")
	case cfg.Now.Before(cert.NotBefore):
		return fmt.Errorf("is valid only from %s, and it is %s; set the machine's clock", cert.NotBefore.Format(time.RFC3339),
			cfg.Now.UTC().Format(time.RFC3339))
	case !cfg.Now.Before(cert.NotAfter):
		return fmt.Errorf("expired at %s; move the folder away to get a new root, and distribute that to every workload",
			cert.NotAfter.Format(time.RFC3339))
	}
	for _, u := range cert.URIs {
		if u.String() == cfg.TrustDomain.IDString() ||
			slices.ContainsFunc(cfg.Aliases, func(alias spiffeid.TrustDomain) bool { return u.String() == alias.IDString() }) {
			return nil
		}
	}
	return fmt.Errorf("is a root of %v, not of %s; correct --trust-domain or --ca-dir, or name the "+
		"trust domain that the mesh has had with --trust-domain-aliases", cert.URIs, cfg.TrustDomain.IDString())
}

func explainMissing(err error, folder string) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the root in %s is incomplete: %w; restore the folder from a backup, or move it away to get a new root, and "+
			"distribute that to every workload", folder, err)
	}
	return err
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// decodeKey reads a key on a curve; all roots that newRoot has made have one.
func decodeKey(text []byte) (crypto.Signer, error) {
	key, err := keys.Decode(text)
	if err != nil {
		return nil, err
	}
	if _, ok := key.(*ecdsa.PrivateKey); !ok {
		return nil, errors.New("is not an ECDSA key on P-256 or P-384")
	}
	return key, nil
}

func decodeCertificate(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("is not a PEM block of type CERTIFICATE")
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, errors.New("has more than one PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("is not a certificate: %w", err)
	}
	return cert, nil
}
