package mcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
)

// secured is a server with a certificate of a ca, which wants one of clients if that is asked for.
func secured(t *testing.T, ca *testkit.CA, namespace, account string, clients tls.ClientAuthType, names ...string) string {
	t.Helper()
	m, err := ca.NewSVID(namespace, account, func(c *x509.Certificate) { c.DNSNames = names }).Current()
	testkit.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*m.Certificate}, ClientAuth: clients, ClientCAs: m.Roots,
	})))
	discovery.RegisterAggregatedDiscoveryServiceServer(server, discovery.UnimplementedAggregatedDiscoveryServiceServer{})
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	_, port, err := net.SplitHostPort(lis.Addr().String())
	testkit.NoError(t, err)
	return "localhost:" + port
}

// TestWhomAClientBelieves: each mode of tlsSettings with servers that it must and must not believe.
func TestWhomAClientBelieves(t *testing.T) {
	mesh, other := testkit.PKI(t), testkit.NewCA(t, testkit.TrustDomain, time.Now())
	dir := t.TempDir()
	file := filepath.Join(dir, "roots.pem")
	testkit.WriteFile(t, file, mesh.RootPEM)
	m, err := mesh.NewSVID("apps", "adapter").Current()
	testkit.NoError(t, err)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testkit.WriteFile(t, cert, m.CertPEM)
	testkit.WriteFile(t, key, m.KeyPEM)
	const ofMesh, required = networking.ClientTLSSettings_ISTIO_MUTUAL, tls.RequireAndVerifyClientCert
	type settings = networking.ClientTLSSettings
	local := []string{"localhost"}
	inline := string(mesh.RootPEM)
	for name, c := range map[string]struct {
		ca                 *testkit.CA
		namespace, account string
		names              []string
		clients            tls.ClientAuthType
		settings           *settings
		refused            string // "" for a server that is believed
	}{
		"simple, PEM": {mesh, "a", "b", local, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: inline}, ""},
		"simple, a file": {mesh, "a", "b", local, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: file}, ""},
		"simple, another name": {mesh, "a", "b", []string{"other"}, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: inline}, "not localhost"},
		"simple, by sni": {mesh, "a", "b", []string{"other"}, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: inline, Sni: "other"}, ""},
		"simple, another ca": {other, "a", "b", local, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: inline}, "unknown authority"},
		"simple, system's roots": {mesh, "a", "b", local, tls.NoClientCert,
			&settings{Mode: simple}, "unknown authority"},
		"simple, no such file": {mesh, "a", "b", nil, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: "/none"}, "caCertificates"},
		"simple, subjectAltNames": {mesh, "a", "b", local, tls.NoClientCert,
			&settings{Mode: simple, CaCertificates: inline, SubjectAltNames: []string{"x"}}, "subjectAltNames"},
		"simple, without any trust": {other, "a", "b", nil, tls.NoClientCert,
			&settings{Mode: simple, InsecureSkipVerify: wrapperspb.Bool(true)}, ""},
		"simple shows nothing": {mesh, "a", "b", local, required,
			&settings{Mode: simple, CaCertificates: inline}, "Unavailable"},
		"mutual": {mesh, "a", "b", local, required,
			&settings{Mode: mutual, CaCertificates: file, ClientCertificate: cert, PrivateKey: key}, ""},
		"mutual, no such file": {mesh, "a", "b", local, required,
			&settings{Mode: mutual, CaCertificates: file, ClientCertificate: "/none", PrivateKey: key}, "clientCertificate"},
		"mesh, root namespace": {mesh, "istio-system", "istiod", nil, required,
			&settings{Mode: ofMesh}, ""},
		"mesh, by name": {mesh, "apps", "adapter", local, required,
			&settings{Mode: ofMesh}, ""},
		"mesh, any workload": {mesh, "apps", "thief", nil, required,
			&settings{Mode: ofMesh}, "neither of its root namespace"},
		"mesh, expected identity": {mesh, "apps", "adapter", nil, required,
			&settings{Mode: ofMesh, SubjectAltNames: []string{mesh.ID("apps", "adapter").String()}}, ""},
		"mesh, another identity": {mesh, "istio-system", "istiod", local, required,
			&settings{Mode: ofMesh, SubjectAltNames: []string{mesh.ID("apps", "adapter").String()}}, "subjectAltNames"},
		"mesh, another ca": {other, "istio-system", "istiod", local, tls.NoClientCert,
			&settings{Mode: ofMesh}, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			address := secured(t, c.ca, c.namespace, c.account, c.clients, c.names...)
			trust := Trust{Identity: mesh.NewSVID("istio-system", "config-watcher"), Root: func() string { return "istio-system" }}
			conn, err := Dialer(address, c.settings, trust)(t.Context())
			if err == nil {
				defer conn.Close() //nolint:errcheck // a test
				err = opened(conn)
			}
			switch {
			case c.refused == "" && status.Code(err) != codes.Unimplemented:
				t.Errorf("not believed: %v", err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}

// opened opens a stream, and returns how it ends: the server has no method.
func opened(conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// TestWhereAClientConnects: addresses of this machine, where adapters run, and none of metadata services.
func TestWhereAClientConnects(t *testing.T) {
	conn, err := Dialer("169.254.169.254:80", nil, Trust{})(t.Context())
	testkit.NoError(t, err)
	defer conn.Close() //nolint:errcheck // a test
	if err := opened(conn); err == nil || !strings.Contains(err.Error(), "metadata") {
		t.Errorf("got %v", err)
	}
	if _, err := Dialer("localhost", nil, Trust{})(t.Context()); err == nil {
		t.Error("an address without a port was taken")
	}
	p := newPeer(t)
	plain, err := Dialer(p.address, nil, Trust{})(t.Context())
	testkit.NoError(t, err)
	defer plain.Close() //nolint:errcheck // a test
	if _, err := discovery.NewAggregatedDiscoveryServiceClient(plain).StreamAggregatedResources(t.Context()); err != nil {
		t.Errorf("plaintext: %v", err)
	}
}
