package identity

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/sds"
)

func response(t testing.TB, secrets ...*tlsv3.Secret) *discoveryv3.DiscoveryResponse {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{TypeUrl: sds.TypeURL}
	for _, s := range secrets {
		packed, err := anypb.New(s)
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, packed)
	}
	return r
}

func pairOf(m *tlsconf.Material) *tlsv3.Secret {
	return &tlsv3.Secret{Name: sds.Default,
		Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(m.CertPEM),
			PrivateKey: inline(m.KeyPEM)}}}
}

func rootsOf(m *tlsconf.Material) *tlsv3.Secret {
	return &tlsv3.Secret{Name: sds.RootCA,
		Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(m.RootsPEM)}}}
}

func material(t testing.TB, s tlsconf.Source) *tlsconf.Material {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// What an external server sends and cannot be used is refused, and what was there before stays.
func TestSecretsOfAnExternalServerAreChecked(t *testing.T) {
	ca := testkit.PKI(t)
	good, other := material(t, ca.NewSVID("a", "b")), material(t, ca.NewSVID("a", "c"))
	mixed := *good
	mixed.KeyPEM = other.KeyPEM
	file := pairOf(good)
	file.GetTlsCertificate().PrivateKey = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/etc/shadow"}}
	held := pairOf(good)
	held.GetTlsCertificate().PrivateKey = nil
	held.GetTlsCertificate().PrivateKeyProvider = &tlsv3.PrivateKeyProvider{ProviderName: "hsm"}
	broken := *good
	broken.RootsPEM = []byte("no roots")
	e := NewExternal(ExternalConfig{Path: "/socket", Log: testkit.Logger(t)})
	for _, s := range []*tlsv3.Secret{rootsOf(good), pairOf(good)} {
		if err := e.take(s.GetName(), response(t, s)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		of string
		r  *discoveryv3.DiscoveryResponse
	}{
		"no secret":             {sds.Default, response(t)},
		"another secret":        {sds.Default, response(t, rootsOf(good))},
		"a key of another":      {sds.Default, response(t, pairOf(&mixed))},
		"a file":                {sds.Default, response(t, file)},
		"a key provider":        {sds.Default, response(t, held)},
		"roots in its place":    {sds.Default, response(t, &tlsv3.Secret{Name: sds.Default, Type: rootsOf(good).GetType()})},
		"a pair for roots":      {sds.RootCA, response(t, &tlsv3.Secret{Name: sds.RootCA, Type: pairOf(good).GetType()})},
		"roots that are broken": {sds.RootCA, response(t, rootsOf(&broken))},
		"another type":          {sds.Default, &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{TypeUrl: "x", Value: []byte("y")}}}},
	} {
		if err := e.take(tc.of, tc.r); err == nil {
			t.Errorf("%s: taken", name)
		}
		if m := material(t, e); !m.Certificate.Leaf.Equal(good.Certificate.Leaf) {
			t.Errorf("%s: the certificate before is gone", name)
		}
	}
}

// nagging is a server that answers every request with a secret that cannot be used.
type nagging struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	response *discoveryv3.DiscoveryResponse
	answered [2]atomic.Int64 // for each secret
}

func (n *nagging) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(n.response); err != nil {
			return err
		}
		n.answered[slices.Index([]string{sds.Default, sds.RootCA}, r.GetResourceNames()[0])].Add(1)
	}
}

// A server that sends the same broken secret again after each refusal gets one line of the log a minute.
func TestRefusalsOfAnExternalServerAreLoggedOnceAMinute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sds")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, n := grpc.NewServer(), &nagging{response: response(t)}
	secretv3.RegisterSecretDiscoveryServiceServer(server, n)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	clock, log := testkit.NewClock(time.Unix(1e9, 0)), &testkit.Buffer{}
	e := NewExternal(ExternalConfig{Path: path, Node: &corev3.Node{Id: "a"}, Clock: clock, Log: slog.New(slog.NewTextHandler(log, nil))})
	testkit.Background(t, e.Run)
	lines := func() int { return strings.Count(log.String(), "is refused") }
	for minute := 1; minute <= 3; minute++ {
		for i := range n.answered {
			more := n.answered[i].Load() + 100
			testkit.Eventually(t, testkit.Patience, func() error {
				if got := n.answered[i].Load(); got < more {
					return fmt.Errorf("%d answers", got)
				}
				return nil
			})
		}
		if got := lines(); got != 2*minute { // one for each of the two secrets
			t.Fatalf("%d lines in minute %d:\n%s", got, minute, log.String())
		}
		clock.Advance(refusedEvery)
	}
	if strings.Count(log.String(), "refused_since_last_line=1\n") != 2 {
		t.Errorf("the number of refusals is not there:\n%s", log.String())
	}
}

func FuzzExternalResponse(f *testing.F) {
	m := material(f, testkit.PKI(f).NewSVID("a", "b"))
	for _, s := range []*tlsv3.Secret{pairOf(m), rootsOf(m)} {
		raw, err := proto.Marshal(response(f, s))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := &discoveryv3.DiscoveryResponse{}
		if proto.Unmarshal(raw, r) != nil {
			return
		}
		e := NewExternal(ExternalConfig{Path: "/socket", Log: testkit.Logger(t)})
		for _, name := range []string{sds.RootCA, sds.Default} {
			_ = e.take(name, r)
		}
		if m, err := e.Current(); err == nil && m.Roots == nil {
			t.Error("material without roots")
		}
	})
}
