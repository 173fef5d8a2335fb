package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
)

const callTimeout = testkit.Patience

// harness is a ca that serves on loopback, with an issuer of tokens.
type harness struct {
	t        *testing.T
	server   *Server
	issuer   *testkit.Issuer
	options  Options
	registry *prometheus.Registry
	log      *testkit.Buffer
	*servicetest.Running
}

// defaults are options for a ca in a directory of the test's.
func defaults(t *testing.T, issuer *testkit.Issuer) Options {
	t.Helper()
	return Options{
		Options: service.Options{
			OpsAddress: "127.0.0.1:0", ShutdownGrace: 5 * time.Second, TrustDomain: testkit.TrustDomain, AdminJWKSFile: issuer.JWKSFile,
		},
		GRPCAddress: "127.0.0.1:0", Identity: "istio-system/ca", Dir: filepath.Join(t.TempDir(), "ca"), RootTTL: 24 * time.Hour,
		JWKSFile: issuer.JWKSFile, Issuer: issuer.Name,
		WorkloadTTL: time.Hour, MaxWorkloadTTL: 2 * time.Hour, MaxRenewalAge: 24 * time.Hour, ClockSkew: time.Minute,
		DNSNames: []string{"istio-system/ca=ca.istio-system.svc"}, Workers: 2, Queue: 64, QueueWait: time.Second, MaxWatches: 8,
		Settle: 10 * time.Millisecond,
	}
}

func start(t *testing.T, change func(*Options)) *harness {
	t.Helper()
	issuer := testkit.NewIssuer(t)
	o := defaults(t, issuer)
	if change != nil {
		change(&o)
	}
	return startWith(t, issuer, o)
}

func startWith(t *testing.T, issuer *testkit.Issuer, o Options) *harness {
	t.Helper()
	return startAt(t, issuer, o, nil)
}

// startAt is startWith by another clock than the machine's.
func startAt(t *testing.T, issuer *testkit.Issuer, o Options, by clock.Clock) *harness {
	t.Helper()
	return startIn(t, issuer, o, deps{Deps: service.Deps{Clock: by}})
}

// startIn is startWith in another environment: a clock, a cluster, a log.
func startIn(t *testing.T, issuer *testkit.Issuer, o Options, in deps) *harness {
	t.Helper()
	h := &harness{t: t, issuer: issuer, options: o, registry: prometheus.NewRegistry(), log: &testkit.Buffer{}}
	in.Registry = h.registry
	if in.Log == nil {
		in.Log = slog.New(slog.NewJSONHandler(h.log, nil))
	}
	h.server, h.Running = servicetest.Start(t, open, &o, in)
	return h
}

// roots is the published bundle.
func (h *harness) roots() *x509.CertPool {
	bundle, _ := h.server.publisher.Current()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(strings.Join(bundle.Roots, "")))
	return pool
}

// dial connects with an optional client certificate and verifies the server by its DNS name, as Istio's own agent does.
func (h *harness) dial(cert *tls.Certificate) *grpc.ClientConn {
	h.t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: h.roots(), ServerName: "ca.istio-system.svc"}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	conn, err := grpc.NewClient(h.Address("grpc-address"), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// as puts a bearer token into a call's metadata.
func as(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func (h *harness) token(namespace, account string) string {
	return h.issuer.Token(namespace, account, contract.TokenAudience)
}

// create asks for a certificate.
func create(ctx context.Context, conn *grpc.ClientConn, req *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return security.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, req)
}

// issued is an issued certificate with its key.
type issued struct {
	leaf, root *x509.Certificate
	key        *ecdsa.PrivateKey
}

func (s issued) tls() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{s.leaf.Raw}, PrivateKey: s.key, Leaf: s.leaf}
}

// mustCreate asks with an ordinary request for the caller's own certificate.
func (h *harness) mustCreate(ctx context.Context, conn *grpc.ClientConn, ttl time.Duration) issued {
	h.t.Helper()
	key := catest.Key(h.t)
	res, err := create(ctx, conn, &security.IstioCertificateRequest{
		Csr: catest.CSR(h.t, key, &x509.CertificateRequest{}), ValidityDuration: int64(ttl / time.Second),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.check(res, key)
}

// check verifies the chain as a peer would: leaf first, root last, leaf signed by the root and for the key.
func (h *harness) check(res *security.IstioCertificateResponse, key *ecdsa.PrivateKey) issued {
	h.t.Helper()
	if len(res.GetCertChain()) != 2 {
		h.t.Fatalf("chain of %d certificates, want leaf and root", len(res.GetCertChain()))
	}
	out := issued{leaf: parse(h.t, res.CertChain[0]), root: parse(h.t, res.CertChain[1]), key: key}
	if !key.PublicKey.Equal(out.leaf.PublicKey) {
		h.t.Fatal("the certificate is for another key")
	}
	if _, err := out.leaf.Verify(x509.VerifyOptions{Roots: h.roots(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		h.t.Fatal(err)
	}
	if err := out.leaf.CheckSignatureFrom(out.root); err != nil {
		h.t.Fatal(err)
	}
	return out
}

func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode([]byte(text))
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one certificate in PEM: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func uriOf(cert *x509.Certificate) string {
	var all []string
	for _, u := range cert.URIs {
		all = append(all, (*url.URL).String(u))
	}
	return strings.Join(all, " ")
}

// metric is the value of a counter or gauge, with this value of its one label, or without labels if label is empty.
func (h *harness) metric(name, label string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if (label == "" && len(m.GetLabel()) == 0) || (len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	h.t.Fatalf("no metric %s{%s}", name, label)
	return 0
}
