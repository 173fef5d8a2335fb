package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/store"
)

const newDomain = "mesh.example"

// migrate starts a ca in the old trust domain, and then in the new one with the old one as alias. It returns a
// certificate of the old one.
func migrate(t *testing.T) (*harness, issued) {
	t.Helper()
	h := start(t, nil)
	before := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	h.Stop()
	o := h.options
	o.TrustDomain, o.TrustDomainAliases = newDomain, []string{testkit.TrustDomain}
	return startWith(t, h.issuer, o), before
}

func TestATrustDomainIsMigrated(t *testing.T) {
	h, before := migrate(t)
	const wanted = "spiffe://" + newDomain + "/ns/default/sa/reviews"
	if uriOf(before.leaf) != reviewsID {
		t.Fatalf("before: %s", uriOf(before.leaf))
	}
	conn := h.dial(before.tls())
	renewed := h.mustCreate(t.Context(), conn, 0)
	if uriOf(renewed.leaf) != wanted || !renewed.root.Equal(before.root) {
		t.Errorf("renewed as %s", uriOf(renewed.leaf))
	}
	if again := h.mustCreate(t.Context(), h.dial(renewed.tls()), 0); uriOf(again.leaf) != wanted {
		t.Errorf("and again as %s", uriOf(again.leaf))
	}
	if byToken := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0); uriOf(byToken.leaf) != wanted {
		t.Errorf("with a token: %s", uriOf(byToken.leaf))
	}
	for uri, code := range map[string]codes.Code{
		reviewsID: codes.OK, wanted: codes.OK,
		"spiffe://" + testkit.TrustDomain + "/ns/default/sa/ratings": codes.PermissionDenied,
		"spiffe://" + newDomain + "/ns/default/sa/ratings":           codes.PermissionDenied,
		"spiffe://foreign/ns/default/sa/reviews":                     codes.PermissionDenied,
	} {
		key := catest.Key(t)
		answer, err := create(t.Context(), conn, &security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, uri))})
		if status.Code(err) != code {
			t.Errorf("a request for %s: %v, want %s", uri, err, code)
		}
		if err == nil && uriOf(h.check(answer, key).leaf) != wanted {
			t.Errorf("a request for %s was answered with another name", uri)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, "reviews-1", 0)
	if bundle, err := stream.Recv(); err != nil || bundle.GetTrustDomain() != newDomain {
		t.Errorf("the bundle: %v, %v", bundle, err)
	}
}

// The ca's own root has signed a certificate of a domain that is neither its own nor an alias.
func TestAForeignDomainIsNoAlias(t *testing.T) {
	h, _ := migrate(t)
	root, err := store.Open(t.Context(), store.Config{Dir: h.options.Dir, TrustDomain: h.server.cfg.trustDomain, Aliases: h.server.cfg.aliases,
		RootTTL: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	for _, domain := range []string{"foreign", "cluster.local.foreign", "cluster.loca"} {
		key := catest.Key(t)
		uri := &url.URL{Scheme: "spiffe", Host: domain, Path: "/ns/default/sa/reviews"}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(7), URIs: []*url.URL{uri}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, root.Certificate, key.Public(), root.Key)
		if err != nil {
			t.Fatal(err)
		}
		conn := h.dial(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
		_, err = create(t.Context(), conn, &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want a refused handshake", uri, err)
		}
	}
}

func TestRefusedAliases(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	for says, aliases := range map[string][]string{
		"is --trust-domain itself": {testkit.TrustDomain},
		"is there twice":           {"old.example", "old.example"},
		`"Old Domain"`:             {"Old Domain"},
		"more than 16":             strings.Split(strings.Repeat("a,", 17), ","),
	} {
		o := defaults(t, issuer)
		o.TrustDomainAliases = aliases
		_, err := o.check()
		if err == nil || !strings.Contains(err.Error(), "--trust-domain-aliases") || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", aliases, err, says)
		}
	}
	// Without the alias, the root of the old domain is refused with the remedy.
	h := start(t, nil)
	h.Stop()
	o := h.options
	o.TrustDomain = newDomain
	_, err := Open(t.Context(), &o, servicetest.Deps(t))
	if process.ExitCode(err) != process.ExitFailure || !strings.Contains(fmt.Sprint(err), "--trust-domain-aliases") {
		t.Errorf("got %v", err)
	}
}
