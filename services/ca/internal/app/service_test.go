package app

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

// signerServer is a server of SignerService by a root alone.
type signerServer struct {
	cav1.UnimplementedSignerServiceServer
	ca   *testkit.CA
	lies atomic.Bool
}

func (s *signerServer) GetRoots(context.Context, *cav1.GetRootsRequest) (*cav1.GetRootsResponse, error) {
	return &cav1.GetRootsResponse{RootCertificates: []string{string(s.ca.RootPEM)}}, nil
}

func (s *signerServer) Sign(_ context.Context, r *cav1.SignRequest) (*cav1.SignResponse, error) {
	leaf, err := r.Template(time.Now())
	if err != nil {
		return nil, err
	}
	if s.lies.Load() {
		leaf.NotAfter = leaf.NotAfter.AddDate(1, 0, 0)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca.Cert, leaf.PublicKey, s.ca.Key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &cav1.SignResponse{CertificateChain: signertest.PEM(cert)}, err
}

// A whole ca signs by a server of the contract. Its workloads verify with that server's root, and renew by certificate.
func TestASignerServiceSigns(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "signer.sock")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &signerServer{ca: testkit.PKI(t)}
	g := grpc.NewServer()
	cav1.RegisterSignerServiceServer(g, server)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	h := start(t, func(o *Options) {
		o.SignerFile = filepath.Join(dir, "signer.yaml")
		testkit.WriteFile(t, o.SignerFile, fmt.Appendf(nil,
			"apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: external\nservice: {address: \"unix://%s\"}\n", socket))
	})
	token, conn := h.token("default", "reviews"), h.dial(nil)
	ask := func() (*security.IstioCertificateResponse, error) {
		return create(as(t.Context(), token), conn, &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}),
		})
	}
	answer, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if chain := answer.GetCertChain(); len(chain) != 2 || chain[1] != string(server.ca.RootPEM) {
		t.Fatalf("a chain of %d elements, want leaf and the bundle", len(chain))
	}
	if err := parse(t, answer.GetCertChain()[0]).CheckSignatureFrom(server.ca.Cert); err != nil {
		t.Error(err)
	}
	server.lies.Store(true)
	if answer, err := ask(); err == nil {
		t.Errorf("a lie went through: %v", answer)
	}
	server.lies.Store(false)
	if _, err := ask(); err != nil {
		t.Error(err)
	}
	g.Stop()
	if _, err := ask(); err == nil {
		t.Error("a certificate without a signer")
	}
}
