package app

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/token"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/tokentime"
)

// TestATaskOfNomadGetsTheCertificateOfItsRule, also by an xds-server, and renews by it as long as the rule is there.
func TestATaskOfNomadGetsTheCertificateOfItsRule(t *testing.T) {
	const web = "spiffe://cluster.local/ns/shop/sa/web"
	signer := testkit.Must(token.NewNomad("", false))(t)
	task := func(namespace, job, task string) string {
		return testkit.Must(signer.Task(namespace, job, task, nil))(t)
	}
	nomad := &remote{Cluster: clusterkeys.Cluster{Name: "nomad", Keys: testkit.Must(signer.JWKS())(t), Namespaces: []string{"shop"}}}
	nomad.Nomad = []clusterkeys.NomadRule{
		{Namespace: "default", Job: "web", Task: "server", Account: "shop/web"},
		{Namespace: "default", Job: "bank", Task: "*", Account: "bank/web"},
		{Namespace: "ops", Job: "*", Task: "*", Account: contract.SystemNamespace + "/xds-server"},
	}
	h, _, trust := trusting(t, nil, nomad)
	got := h.mustCreate(as(t.Context(), task("default", "web", "server")), h.dial(nil), 0)
	if uriOf(got.leaf) != web || tokentime.Cluster(got.leaf) != "nomad" {
		t.Errorf("got %s of cluster %q", uriOf(got.leaf), tokentime.Cluster(got.leaf))
	}
	server := h.dial(h.asAccount("xds-server"))
	chain, key, err := forward(t, server, task("default", "web", "server"), web)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.check(&security.IstioCertificateResponse{CertChain: chain}, key).leaf; uriOf(got) != web {
		t.Errorf("a forwarded request got %s", uriOf(got))
	}
	subject := testkit.Must(signer.Task("", "", "", func(c map[string]any) { c["sub"] = "system:serviceaccount:shop:web" }))(t)
	for name, tc := range map[string]struct{ token, claims, says string }{
		"a task without a rule":    {task("default", "api", "server"), "", `no rule is about task "server" of job "api"`},
		"a rule beyond namespaces": {task("default", "bank", "x"), "spiffe://cluster.local/ns/bank/sa/web", "namespace bank"},
		"a rule for the xds-server": {task("ops", "x", "y"), "spiffe://cluster.local/ns/istio-system/sa/xds-server",
			"mesh's own services"},
		"an account in the subject": {subject, "", "names no namespace, job and task of Nomad"},
	} {
		_, err := create(as(t.Context(), tc.token), h.dial(nil), &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want UNAUTHENTICATED with %q", name, err, tc.says)
		}
		if _, _, err := forward(t, server, tc.token, web); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s, forwarded: got %v, want UNAUTHENTICATED with %q", name, err, tc.says)
		}
		if want := `"cluster":"nomad","claimed":"` + tc.claims + `"`; !strings.Contains(h.log.String(), want) {
			t.Errorf("%s: no audit line has %s", name, want)
		}
	}
	without := *nomad
	without.Nomad = nomad.Nomad[1:]
	trust(&without)
	_, err = create(t.Context(), h.dial(got.tls()), &security.IstioCertificateRequest{
		Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "no rule gives") {
		t.Errorf("a renewal without the rule: %v", err)
	}
}

// TestAnEntryOfAnotherTrustDomainProvesNothing, whoever has written the file.
func TestAnEntryOfAnotherTrustDomainProvesNothing(t *testing.T) {
	far := newRemote(t, "far")
	far.TrustDomain = "far.local"
	h, _, trust := trusting(t, nil, far)
	server := h.dial(h.asAccount("xds-server"))
	refused := func(token, id, says string) {
		t.Helper()
		if chain, _, err := forward(t, server, token, id); len(chain) > 0 || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("forwarded as %s: %v", id, err)
		}
	}
	const says = "field trustDomain: far.local is not the mesh's"
	_, err := create(as(t.Context(), far.token("shop", "web")), h.dial(nil), &security.IstioCertificateRequest{
		Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v", err)
	}
	refused(far.token("shop", "web"), "spiffe://far.local/ns/shop/sa/web", says)
	refused(far.token("shop", "web"), "spiffe://cluster.local/ns/shop/sa/web", says)
	if n := strings.Count(h.log.String(), `"cluster":"far","claimed":"spiffe://far.local/ns/shop/sa/web"`); n != 3 {
		t.Errorf("%d audit lines, want 3:\n%s", n, h.log)
	}
	far.TrustDomain = ""
	trust(far)
	refused(far.token("shop", "web"), "spiffe://far.local/ns/shop/sa/web", "was authenticated as spiffe://far.local/ns/shop/sa/web")
	subject := far.Sign(map[string]any{"iss": far.Issuer.Name, "sub": "spiffe://far.local/ns/shop/sa/web", "aud": contract.TokenAudience,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()})
	refused(subject, "spiffe://far.local/ns/shop/sa/web", "not a service account")
}

// TestTheOwnClustersKeyStaysItsOwn: an entry with it takes nothing from the own cluster, and gets nothing.
func TestTheOwnClustersKeyStaysItsOwn(t *testing.T) {
	h, _, trust := trusting(t, nil)
	copied := &remote{Issuer: h.issuer, Cluster: clusterkeys.Cluster{Name: "copied", Issuer: h.issuer.Name, Namespaces: []string{"shop"}}}
	raw, err := h.issuer.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	copied.Keys = raw
	trust(copied)
	got := h.mustCreate(as(t.Context(), h.token("bank", "web")), h.dial(nil), 0)
	if uriOf(got.leaf) != "spiffe://cluster.local/ns/bank/sa/web" || tokentime.Cluster(got.leaf) != "" {
		t.Errorf("got %s of cluster %q", uriOf(got.leaf), tokentime.Cluster(got.leaf))
	}
	if n := h.metric("fairlead_ca_remote_clusters_problem", ""); n != 1 {
		t.Errorf("fairlead_ca_remote_clusters_problem is %v", n)
	}
}
