package alerts

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/probe"
)

// ownSigner is a signer of a team's own, behind a socket, that can be made to fail and to lie.
type ownSigner struct {
	cav1.UnimplementedSignerServiceServer
	ca          *testkit.CA
	fails, lies atomic.Bool
}

func (s *ownSigner) GetRoots(context.Context, *cav1.GetRootsRequest) (*cav1.GetRootsResponse, error) {
	return &cav1.GetRootsResponse{RootCertificates: []string{string(s.ca.RootPEM)}}, nil
}

func (s *ownSigner) Sign(_ context.Context, r *cav1.SignRequest) (*cav1.SignResponse, error) {
	if s.fails.Load() {
		return nil, status.Error(codes.Unavailable, "the module is away")
	}
	leaf, err := r.Template(time.Now())
	if err != nil {
		return nil, err
	}
	if s.lies.Load() {
		leaf.DNSNames = append(leaf.DNSNames, "istiod.istio-system.svc")
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca.Cert, leaf.PublicKey, s.ca.Key)
	if err != nil {
		return nil, err
	}
	return &cav1.SignResponse{CertificateChain: []string{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}}, nil
}

// signerFaults makes the faults of signers: files, intermediates and services.
func signerFaults(t *testing.T, l *lab) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name+".yaml")
		testkit.WriteFile(t, path, []byte("apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: "+name+"\n"+text))
		return path
	}
	start := func(name, signer string) *controlplane.Plane {
		t.Helper()
		p := plane(t)
		p.CA.Add("--signer-file", signer)
		if err := p.StartCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.targets = nil
		l.add("ca", name, p.CA.Ops)
		return p
	}

	short := file("disk", fmt.Sprintf("intermediate: {keys: {directory: {dir: %s/keys}}, ttl: 49h, selfSigned: {}}\n", dir))
	start("ca-disk", short)
	l.provoke(fault{service: "ca", alerts: []string{"SignerProblem"}, make_: func(*testing.T) func() {
		file("disk", "intermediates: {}\n")
		return nil
	}, until: func(s scrape) bool { return s.sum("fairlead_ca_signer_problem") > 0 }})
	l.provoke(fault{service: "ca", alerts: []string{"IssuerExpires"}, afresh: true, make_: func(*testing.T) func() { return nil }})

	still := start("ca-still", file("still", fmt.Sprintf("intermediate: {keys: {directory: {dir: %s/keys-still}}, selfSigned: {}}\n", dir)))
	certificate(t, byToken(t, still, still.CA.GRPC, "default", "client")) // and asks for no other
	l.provoke(fault{service: "ca", alerts: []string{"RotationStuck"}, faster: 900, make_: func(t *testing.T) func() {
		_, err := still.Rotation(t.Context(), probe.Client(nil), &caapi.Command{Action: caapi.Rotate})
		testkit.NoError(t, err)
		return nil
	}, until: func(s scrape) bool {
		since := s.sum("fairlead_ca_rotation_step_since_timestamp_seconds")
		return s.sum("fairlead_ca_rotation_waits", `for="holders"`) > 0 && float64(s.at.UnixNano())/1e9-since > 1
	}})

	signer := &ownSigner{ca: testkit.PKI(t)}
	socket := filepath.Join(dir, "signer.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cav1.RegisterSignerServiceServer(server, signer)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	p := start("ca-own", file("own", "service: {address: 'unix://"+socket+"'}\n"))
	request := testkit.Must(controlplane.NewRequest())(t)
	workload := byToken(t, p, p.CA.GRPC, "default", "client")
	ask := func(ctx context.Context) error {
		if _, err := request.Send(ctx, workload, 0); status.Code(err) != codes.Unavailable {
			return errors.Join(errors.New("a signer that fails or lies was not noticed"), err)
		}
		return nil
	}
	l.provoke(fault{service: "ca", alerts: []string{"SignerLies"}, make_: func(t *testing.T) func() {
		signer.lies.Store(true)
		often(t, 20, ask)
		return func() { signer.lies.Store(false) }
	}})
	l.provoke(fault{service: "ca", alerts: []string{"SignerFails"}, minutes: 8, make_: func(t *testing.T) func() {
		signer.fails.Store(true)
		often(t, 1000, ask)
		return func() { signer.fails.Store(false) }
	}})
}
