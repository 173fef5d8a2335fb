package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

// Request is a new key, and the request for its certificate in PEM.
type Request struct {
	Key *ecdsa.PrivateKey
	PEM string
}

// NewRequest makes a key and a request that names these URIs: the ca writes the caller's own whatever is asked for.
func NewRequest(uris ...*url.URL) (r Request, err error) {
	if r.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return r, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: uris}, r.Key)
	r.PEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	return r, err
}

// Send asks a ca that conn leads to, once it is there, for a certificate of some validity; 0 leaves that to the ca.
func (r Request) Send(ctx context.Context, conn grpc.ClientConnInterface, ttl time.Duration) (*tls.Certificate, error) {
	answer, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
		&securityv1alpha1.IstioCertificateRequest{Csr: r.PEM, ValidityDuration: int64(ttl / time.Second)}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{PrivateKey: r.Key}
	text := []byte(strings.Join(answer.GetCertChain(), "\n"))
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert.Certificate = append(cert.Certificate, block.Bytes)
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("the ca answered without a certificate")
	}
	return cert, nil
}
