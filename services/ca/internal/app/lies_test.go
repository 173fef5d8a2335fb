package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

// liar is a SignerService that does what it is told.
type liar struct {
	cav1.UnimplementedSignerServiceServer
	*signertest.Upstream
}

func (l liar) GetRoots(context.Context, *cav1.GetRootsRequest) (*cav1.GetRootsResponse, error) {
	return &cav1.GetRootsResponse{RootCertificates: signertest.PEM(l.Root)}, nil
}

func (l liar) Sign(_ context.Context, r *cav1.SignRequest) (*cav1.SignResponse, error) {
	template, err := r.Template(time.Now())
	if err != nil {
		return nil, err
	}
	return &cav1.SignResponse{CertificateChain: signertest.PEM(l.Answer(template)...)}, nil
}

// serveSigner serves a SignerService on a unix socket, and returns the text of the signer file that chooses it.
func serveSigner(t *testing.T, s cav1.SignerServiceServer) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "signer.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	testkit.NoError(t, err)
	server := grpc.NewServer()
	cav1.RegisterSignerServiceServer(server, s)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	return fmt.Sprintf("apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: own\nservice: {address: 'unix://%s'}\n", socket)
}

// A signer that has been honest tells one lie after the other. Nobody gets such a certificate; each lie is counted by
// what the alert SignerLies reads, and honest answers count again at once.
func TestLiesReachNobody(t *testing.T) {
	s := liar{Upstream: signertest.NewUpstream(t)}
	text := serveSigner(t, s)
	h := start(t, func(o *Options) {
		o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
		testkit.WriteFile(t, o.SignerFile, []byte(text))
	})
	conn, key := h.dial(nil), catest.Key(t)
	request := &security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{})}
	ask := func() (*security.IstioCertificateResponse, error) {
		return create(as(t.Context(), h.token("default", "reviews")), conn, request)
	}
	honest := func() {
		t.Helper()
		res, err := ask()
		if err != nil {
			t.Fatalf("an honest answer is refused: %v", err)
		}
		leaf, between := parse(t, res.CertChain[0]), x509.NewCertPool()
		between.AddCert(parse(t, res.CertChain[1]))
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: h.roots(), Intermediates: between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil || !key.PublicKey.Equal(leaf.PublicKey) {
			t.Fatalf("not the caller's certificate: %v", err)
		}
	}
	honest()
	lies := signertest.Lies()
	if len(lies) < 8 {
		t.Fatalf("%d lies, want at least 8", len(lies))
	}
	for i, lie := range lies {
		t.Run(lie.Name, func(t *testing.T) {
			s.Lie(&lie)
			res, err := ask()
			if status.Code(err) != codes.Unavailable || res != nil {
				t.Errorf("got %v, %v, want UNAVAILABLE", res, err)
			}
			if counted := h.metric("fairlead_ca_requests_refused_total", "signer_lied"); counted != float64(i+1) {
				t.Errorf("%v lies counted, want %d", counted, i+1)
			}
			s.Lie(nil)
			honest()
		})
	}
}
