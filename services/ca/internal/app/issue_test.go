package app

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/issuance"
)

const reviewsID = "spiffe://cluster.local/ns/default/sa/reviews"

func TestTokenGetsItsOwnIdentity(t *testing.T) {
	h := start(t, nil)
	before := time.Now()
	got := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	if uriOf(got.leaf) != reviewsID {
		t.Errorf("identity %q, want %q", uriOf(got.leaf), reviewsID)
	}
	if got.leaf.IsCA || len(got.leaf.DNSNames) > 0 || got.leaf.Subject.String() != "" {
		t.Errorf("leaf has more than an identity: CA %v, DNS %v, subject %q", got.leaf.IsCA, got.leaf.DNSNames, got.leaf.Subject)
	}
	if after := time.Now(); got.leaf.NotBefore.After(after.Add(-time.Minute)) {
		t.Errorf("notBefore %s is not backdated by a minute from %s", got.leaf.NotBefore, after)
	}
	if left := got.leaf.NotAfter.Sub(before); left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("lifetime %s, want the default of an hour", left)
	}
	if !strings.Contains(h.log.String(), `"decision":"issued"`) || !strings.Contains(h.log.String(), reviewsID) {
		t.Errorf("no audit line for the certificate in:\n%s", h.log)
	}
}

func TestLifetimeIsClamped(t *testing.T) {
	h := start(t, func(o *Options) { o.RootTTL = 90 * time.Minute })
	ctx, conn := as(t.Context(), h.token("default", "reviews")), h.dial(nil)
	if got := time.Until(h.mustCreate(ctx, conn, 10*time.Minute).leaf.NotAfter); got > 11*time.Minute || got < 9*time.Minute {
		t.Errorf("asked for 10m, got %s", got)
	}
	got := h.mustCreate(ctx, conn, 1000*time.Hour)
	if !got.leaf.NotAfter.Equal(got.root.NotAfter) {
		t.Errorf("notAfter %s, want the root's %s", got.leaf.NotAfter, got.root.NotAfter)
	}
}

func TestConfiguredDNSNames(t *testing.T) {
	h := start(t, func(o *Options) {
		o.DNSNames = append(o.DNSNames, "istio-system/xds-server=xds-server.istio-system.svc,istiod.istio-system.svc")
		o.RemoteDNSNames = append(o.RemoteDNSNames, "fairlead-remote/injector=injector.fairlead-remote.svc")
	})
	key, conn := catest.Key(t), h.dial(nil)
	ctx := as(t.Context(), h.token(contract.SystemNamespace, contract.XDSServerAccount))
	// A request may name them in any order.
	template := &x509.CertificateRequest{DNSNames: []string{"istiod.istio-system.svc", "xds-server.istio-system.svc"}}
	res, err := create(ctx, conn, &security.IstioCertificateRequest{Csr: catest.CSR(t, key, template)})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.check(res, key).leaf.DNSNames; strings.Join(got, " ") != "xds-server.istio-system.svc istiod.istio-system.svc" {
		t.Errorf("DNS names %v", got)
	}
	if got := h.mustCreate(as(t.Context(), h.token("other", "xds-server")), conn, 0).leaf.DNSNames; len(got) > 0 {
		t.Errorf("an account of the same name in another namespace got DNS names %v", got)
	}
	remote := h.mustCreate(as(t.Context(), h.token("fairlead-remote", "injector")), conn, 0).leaf.DNSNames
	if strings.Join(remote, " ") != "injector.fairlead-remote.svc" {
		t.Errorf("the injector of a remote cluster has the DNS names %v", remote)
	}
}

func TestRefusedRequests(t *testing.T) {
	h := start(t, nil)
	conn := h.dial(nil)
	key := catest.Key(t)
	isCA := catest.Extension(t, asn1.ObjectIdentifier{2, 5, 29, 19}, struct{ CA bool }{true})
	odd := &x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}}
	ca := catest.CSR(t, key, isCA)
	own := catest.CSR(t, key, catest.Names(t, reviewsID))
	impersonate := func(v *structpb.Value) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{issuance.ImpersonatedIdentity: v}}
	}
	for name, tc := range map[string]struct {
		req  *security.IstioCertificateRequest
		code codes.Code
		says string
	}{
		"own name": {&security.IstioCertificateRequest{Csr: own}, codes.OK, ""},
		"empty":    {&security.IstioCertificateRequest{}, codes.InvalidArgument, "not PEM"},
		"CA:TRUE":  {&security.IstioCertificateRequest{Csr: ca}, codes.InvalidArgument, "leaf certificates only"},
		"odd extension": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, odd)}, codes.InvalidArgument, "1.2.3",
		},
		"two URIs": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, reviewsID, "spiffe://cluster.local/ns/default/sa/admin"))},
			codes.InvalidArgument, "2 URIs",
		},
		"own URI twice": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, reviewsID, reviewsID))}, codes.InvalidArgument, "2 URIs",
		},
		"foreign namespace": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, "spiffe://cluster.local/ns/kube-system/sa/reviews"))},
			codes.PermissionDenied, "the caller is " + reviewsID,
		},
		"foreign account": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, "spiffe://cluster.local/ns/default/sa/ratings"))},
			codes.PermissionDenied, "ratings",
		},
		"foreign trust domain": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, "spiffe://example.org/ns/default/sa/reviews"))},
			codes.PermissionDenied, "example.org",
		},
		"other spelling": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, catest.Names(t, "spiffe://cluster.local/ns/default/sa/review%73"))},
			codes.PermissionDenied, "caller",
		},
		"DNS name": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{DNSNames: []string{"istiod.istio-system.svc"}})},
			codes.PermissionDenied, "DNS names",
		},
		"email": {
			&security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{EmailAddresses: []string{"a@b.example"}})},
			codes.PermissionDenied, "email",
		},
		"negative lifetime": {&security.IstioCertificateRequest{Csr: own, ValidityDuration: -1}, codes.InvalidArgument, "-1 seconds"},
		"impersonation": {&security.IstioCertificateRequest{Csr: own,
			Metadata: impersonate(structpb.NewStringValue("spiffe://cluster.local/ns/default/sa/ratings"))}, codes.PermissionDenied, "may not ask"},
		"impersonate oneself": {&security.IstioCertificateRequest{Csr: own, Metadata: impersonate(structpb.NewStringValue(reviewsID))},
			codes.PermissionDenied, "may not ask"},
		"impersonate nobody": {&security.IstioCertificateRequest{Csr: own, Metadata: impersonate(structpb.NewNullValue())},
			codes.InvalidArgument, "ImpersonatedIdentity"},
		"impersonate a list": {
			&security.IstioCertificateRequest{Csr: own, Metadata: impersonate(structpb.NewListValue(&structpb.ListValue{}))}, codes.InvalidArgument,
			"ImpersonatedIdentity",
		},
		"other metadata": {
			&security.IstioCertificateRequest{Csr: own,
				Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"ClusterID": structpb.NewStringValue("a")}}},
			codes.OK, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create(as(t.Context(), h.token("default", "reviews")), conn, tc.req)
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.says) {
				t.Errorf("got %v, want %s with %q", err, tc.code, tc.says)
			}
		})
	}
	if strings.Contains(h.log.String(), "BEGIN") || strings.Contains(h.log.String(), "eyJ") {
		t.Errorf("the log holds requests or tokens:\n%s", h.log)
	}
}

func TestAllowedImpersonation(t *testing.T) {
	h := start(t, func(o *Options) { o.Impersonators = []string{"istio-system/ztunnel=default/*,prod/web"} })
	conn := h.dial(nil)
	for id, want := range map[string]codes.Code{
		reviewsID:                                  codes.OK,
		"spiffe://cluster.local/ns/prod/sa/web":    codes.OK,
		"spiffe://cluster.local/ns/prod/sa/db":     codes.PermissionDenied,
		"spiffe://example.org/ns/default/sa/web":   codes.PermissionDenied,
		"spiffe://cluster.local/default/sa/web":    codes.InvalidArgument,
		"https://cluster.local/ns/default/sa/web":  codes.InvalidArgument,
		"spiffe://cluster.local/ns/default/sa/web": codes.OK,
	} {
		key := catest.Key(t)
		res, err := create(as(t.Context(), h.token(contract.SystemNamespace, "ztunnel")), conn, &security.IstioCertificateRequest{
			Csr:      catest.CSR(t, key, &x509.CertificateRequest{}),
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{issuance.ImpersonatedIdentity: structpb.NewStringValue(id)}},
		})
		if status.Code(err) != want {
			t.Errorf("%s: got %v, want %s", id, err, want)
			continue
		}
		if err == nil && uriOf(h.check(res, key).leaf) != id {
			t.Errorf("%s: got a certificate for %s", id, uriOf(h.check(res, key).leaf))
		}
	}
}

func TestTokensRefused(t *testing.T) {
	h := start(t, nil)
	other := testkit.NewIssuer(t)
	now := time.Now()
	claims := func(change func(map[string]any)) map[string]any {
		c := map[string]any{
			"iss": h.issuer.Name, "aud": []string{contract.TokenAudience}, "sub": "system:serviceaccount:default:reviews",
			"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		}
		change(c)
		return c
	}
	// Header and claims in the clear with no signature: {"alg":"none"}.
	none := "eyJhbGciOiJub25lIn0." + strings.Split(h.token("default", "reviews"), ".")[1] + "."
	for name, token := range map[string]string{
		"wrong audience": h.issuer.Token("default", "reviews", "vault"),
		"expired":        h.issuer.Sign(claims(func(c map[string]any) { c["exp"] = now.Add(-time.Hour).Unix() })),
		"no expiry":      h.issuer.Sign(claims(func(c map[string]any) { delete(c, "exp") })),
		"not yet valid":  h.issuer.Sign(claims(func(c map[string]any) { c["nbf"] = now.Add(time.Hour).Unix() })),
		"other issuer":   h.issuer.Sign(claims(func(c map[string]any) { c["iss"] = "https://elsewhere.example" })),
		"a user":         h.issuer.Sign(claims(func(c map[string]any) { c["sub"] = "admin" })),
		"path in name":   h.issuer.Sign(claims(func(c map[string]any) { c["sub"] = "system:serviceaccount:default:a/sa/b" })),
		"other key":      other.Token("default", "reviews", contract.TokenAudience),
		"alg none":       none,
		"not a token":    "reviews",
		"none at all":    "",
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if token != "" {
				ctx = as(ctx, token)
			}
			_, err := create(ctx, h.dial(nil), &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("got %v, want UNAUTHENTICATED", err)
			}
		})
	}
	if got := h.metric("fairlead_ca_requests_refused_total", "unauthenticated"); got != 11 {
		t.Errorf("%v refusals counted as unauthenticated, want 11", got)
	}
}
