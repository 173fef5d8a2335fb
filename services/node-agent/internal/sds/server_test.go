package sds

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/agenttest"
)

// fixture is a Server on a real unix socket and a client of it.
type fixture struct {
	server *Server
	source *testkit.Static
	ca     *testkit.CA
	client secretv3.SecretDiscoveryServiceClient
}

func newFixture(t *testing.T, first *tlsconf.Material, ca *testkit.CA) *fixture {
	t.Helper()
	f := &fixture{ca: ca, source: testkit.NewStatic(first)}
	f.server = New(Config{Source: f.source, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry()})
	conn := agenttest.Socket(t, "envoy.service.secret.v3.SecretDiscoveryService", f.server.Register,
		rpc.ServerConfig{PeerUIDs: []uint32{uint32(os.Geteuid())}})
	f.client = secretv3.NewSecretDiscoveryServiceClient(conn)
	return f
}

func current(t *testing.T, s tlsconf.Source) *tlsconf.Material {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (f *fixture) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func unpack(t *testing.T, a *anypb.Any) *tlsv3.Secret {
	t.Helper()
	s := &tlsv3.Secret{}
	if err := a.UnmarshalTo(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantDefault(t *testing.T, s *tlsv3.Secret, m *tlsconf.Material) {
	t.Helper()
	want := &tlsv3.Secret{Name: Default, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: m.CertPEM}},
		PrivateKey:       &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: m.KeyPEM}},
	}}}
	if !proto.Equal(s, want) {
		t.Errorf("secret %q is not the current certificate and key", s.GetName())
	}
}

// The stream gets no response before there is a certificate, and then each new one without another request.
func TestSotW(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, current(t, ca.RootsOnly()), ca)
	stream, err := f.client.StreamSecrets(f.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DiscoveryRequest) {
		t.Helper()
		r.TypeUrl = TypeURL
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	recv := func() *discoveryv3.DiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{Default}})
	first := current(t, ca.NewSVID("shop", "web"))
	f.source.Set(first)
	r := recv()
	if len(r.GetResources()) != 1 || r.GetTypeUrl() != TypeURL {
		t.Fatalf("response %v", r)
	}
	wantDefault(t, unpack(t, r.GetResources()[0]), first)

	send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{Default}, ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()})
	second := current(t, ca.NewSVID("shop", "web"))
	f.source.Set(second)
	next := recv()
	wantDefault(t, unpack(t, next.GetResources()[0]), second)
	if next.GetVersionInfo() == r.GetVersionInfo() || next.GetNonce() == r.GetNonce() {
		t.Errorf("version and nonce do not change with the certificate: %q %q", next.GetVersionInfo(), next.GetNonce())
	}

	// A rejection is counted, and the rejected secret is not sent again.
	send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{Default}, ResponseNonce: next.GetNonce(),
		ErrorDetail: &statuspb.Status{Message: "no"}})
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := testutil.ToFloat64(f.server.rejected.WithLabelValues(Default)); n != 1 {
			return io.ErrNoProgress
		}
		return nil
	})
	third := current(t, ca.NewSVID("shop", "web"))
	f.source.Set(third)
	wantDefault(t, unpack(t, recv().GetResources()[0]), third)
}

// A delta stream gets what is new: the roots at once, the certificate when there is one, and no version that it holds.
func TestDelta(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, current(t, ca.RootsOnly()), ca)
	open := func() secretv3.SecretDiscoveryService_DeltaSecretsClient {
		stream, err := f.client.DeltaSecrets(f.ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	recv := func(stream secretv3.SecretDiscoveryService_DeltaSecretsClient, want ...string) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, res := range r.GetResources() {
			names = append(names, res.GetName())
			if got := unpack(t, res.GetResource()).GetName(); got != res.GetName() {
				t.Errorf("resource %q holds secret %q", res.GetName(), got)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("got %v, want %v", names, want)
		}
		return r
	}
	stream := open()
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL,
		ResourceNamesSubscribe: []string{Default, RootCA}}); err != nil {
		t.Fatal(err)
	}
	roots := recv(stream, RootCA)
	f.source.Set(current(t, ca.NewSVID("shop", "web")))
	recv(stream, Default)

	again := open()
	if err := again.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResourceNamesSubscribe: []string{Default, RootCA, "file-cert:nothing"},
		InitialResourceVersions: map[string]string{RootCA: roots.GetResources()[0].GetVersion()},
	}); err != nil {
		t.Fatal(err)
	}
	if r := recv(again, Default); !slices.Equal(r.GetRemovedResources(), []string{"file-cert:nothing"}) {
		t.Errorf("removed %v, want the name that does not exist", r.GetRemovedResources())
	}
	other := testkit.NewCA(t, testkit.TrustDomain, time.Now())
	m := *current(t, f.source)
	m.RootsPEM = append(slices.Clone(m.RootsPEM), other.RootPEM...)
	f.source.Set(&m)
	recv(again, RootCA)
	recv(stream, RootCA)
}

func TestOtherTypesAreRejected(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, current(t, ca.NewSVID("shop", "web")), ca)
	stream, err := f.client.StreamSecrets(f.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want InvalidArgument", err)
	}
	if _, err := f.client.FetchSecrets(f.ctx(t), &discoveryv3.DiscoveryRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("fetch: got %v, want Unimplemented", err)
	}
}

// A stream that asks for more than maxSecrets ends with the reason, and no file is followed.
func TestSecretsOfAStreamAreBounded(t *testing.T) {
	ca := testkit.PKI(t)
	f := newFixture(t, current(t, ca.NewSVID("shop", "web")), ca)
	var names []string
	for i := range maxSecrets + 1 {
		names = append(names, fmt.Sprintf("file-root:/nowhere/%d.pem", i))
	}
	sotw, err := f.client.StreamSecrets(f.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: names}); err != nil {
		t.Fatal(err)
	}
	if _, err := sotw.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("state of the world: %v", err)
	}
	delta, err := f.client.DeltaSecrets(f.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, some := range [][]string{names[:maxSecrets], names[maxSecrets:]} {
		if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResourceNamesSubscribe: some}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := delta.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("delta: %v", err)
	}
	if n := len(f.server.files.paths()); n > 0 {
		t.Errorf("%d files are followed", n)
	}
}
