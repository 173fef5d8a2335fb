package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/issuance"
	"fairlead.dev/services/ca/internal/tokentime"
)

// remote is a remote cluster beside the ca's own.
type remote struct {
	*testkit.Issuer
	clusterkeys.Cluster
}

func newRemote(t *testing.T, name string, namespaces ...string) *remote {
	t.Helper()
	r := &remote{Issuer: testkit.NewIssuer(t)}
	r.Rotate(name + "-key")
	r.Cluster = clusterkeys.Cluster{Name: name, Issuer: r.Issuer.Name, Keys: testkit.Must(os.ReadFile(r.JWKSFile))(t), Namespaces: namespaces}
	return r
}

func (r *remote) token(namespace, account string) string {
	return r.Token(namespace, account, contract.TokenAudience)
}

// trusting starts a ca that takes the tokens of remote clusters. trust changes which.
func trusting(t *testing.T, change func(*Options), of ...*remote) (h *harness, clock *testkit.Clock, trust func(...*remote)) {
	t.Helper()
	issuer := testkit.NewIssuer(t)
	issuer.Rotate("own-key")
	o := defaults(t, issuer)
	o.RemoteClustersFile = filepath.Join(t.TempDir(), "clusters.json")
	o.ClockSkew = 90 * time.Hour // more than the clock is advanced, because TLS goes by the machine's
	if change != nil {
		change(&o)
	}
	clock = testkit.NewClock(time.Now())
	trust = func(of ...*remote) {
		t.Helper()
		var clusters []clusterkeys.Cluster
		for _, r := range of {
			clusters = append(clusters, r.Cluster)
		}
		testkit.WriteFile(t, o.RemoteClustersFile, testkit.Must(clusterkeys.Write(clusters))(t))
		clock.Advance(2 * time.Second)
	}
	trust(of...)
	return startAt(t, issuer, o, clock), clock, trust
}

// TestAWorkloadOfARemoteClusterGetsItsOwnCertificate holds what the rightful get, and what the audit line says.
func TestAWorkloadOfARemoteClusterGetsItsOwnCertificate(t *testing.T) {
	east := newRemote(t, "east", "shop")
	h, _, _ := trusting(t, nil, east)
	got := h.mustCreate(as(t.Context(), east.token("shop", "web")), h.dial(nil), 0)
	if uriOf(got.leaf) != "spiffe://cluster.local/ns/shop/sa/web" || tokentime.Cluster(got.leaf) != "east" {
		t.Errorf("got %s of cluster %q", uriOf(got.leaf), tokentime.Cluster(got.leaf))
	}
	if !strings.Contains(h.log.String(), `"cluster":"east"`) {
		t.Errorf("the audit line does not name the cluster:\n%s", h.log)
	}
	again := h.mustCreate(t.Context(), h.dial(got.tls()), 0)
	if tokentime.Cluster(again.leaf) != "east" || !tokentime.Of(again.leaf).Equal(tokentime.Of(got.leaf)) {
		t.Error("the renewed certificate has lost whose token it was issued for")
	}
	chain, key, err := forward(t, h.dial(h.asAccount("xds-server")), east.token("shop", "web"), "spiffe://cluster.local/ns/shop/sa/web")
	testkit.NoError(t, err)
	if got := h.check(&security.IstioCertificateResponse{CertChain: chain}, key).leaf; uriOf(got) != "spiffe://cluster.local/ns/shop/sa/web" {
		t.Errorf("a forwarded request got %s", uriOf(got))
	}
	if own := h.mustCreate(as(t.Context(), h.token("shop", "web")), h.dial(nil), 0); tokentime.Cluster(own.leaf) != "" {
		t.Errorf("a token of the own cluster counts as one of %q", tokentime.Cluster(own.leaf))
	}
}

// TestARemoteClusterGetsNothingElse goes through what the owner of a remote cluster may try: he has its key, writes
// what he likes into tokens, headers and requests, and has servers that forward.
func TestARemoteClusterGetsNothingElse(t *testing.T) {
	east, mid, unknown, copied := newRemote(t, "east", "shop"), newRemote(t, "mid"), newRemote(t, "unknown"), newRemote(t, "copied")
	twin := newRemote(t, "twin")
	twin.Keys = copied.Keys
	h, _, _ := trusting(t, func(o *Options) {
		o.Forwarder = "fairlead-xds/xds-server"
		o.DNSNames = append(o.DNSNames, "fairlead-watch/config-watcher=config-watcher.fairlead-watch.svc", "inject/injector=injector.inject.svc")
		o.Impersonators = []string{"shop/ztunnel=bank/*"}
	}, east, mid, copied, twin)
	stolen := *east.Issuer // east's key under the own cluster's key id
	stolen.KeyID = h.issuer.KeyID
	server := h.dial(h.mustCreate(as(t.Context(), h.token("fairlead-xds", "xds-server")), h.dial(nil), 0).tls())
	for name, tc := range map[string]struct{ token, namespace, account, says string }{
		"another namespace": {east.token("bank", "web"), "bank", "web", "remote cluster east: namespace bank"},
		"the ca":            {east.token("istio-system", "ca"), "istio-system", "ca", "mesh's own services"},
		"the ca, of a cluster without namespaces": {mid.token("istio-system", "ca"), "istio-system", "ca", "mesh's own services"},
		"the xds-server":                   {mid.token("fairlead-xds", "xds-server"), "fairlead-xds", "xds-server", "mesh's own services"},
		"an account beside the xds-server": {mid.token("fairlead-xds", "default"), "fairlead-xds", "default", "mesh's own services"},
		"config-watcher":                   {mid.token("fairlead-watch", "config-watcher"), "fairlead-watch", "config-watcher", "mesh's own services"},
		"the injector":                     {mid.token("inject", "injector"), "inject", "injector", "mesh's own services"},
		"an administrator":                 {mid.token("istio-system", "fairlead-admin"), "istio-system", "fairlead-admin", "mesh's own services"},
		"who may ask for others":           {mid.token("shop", "ztunnel"), "shop", "ztunnel", "mesh's own services"},
		"an unknown key":                   {unknown.token("shop", "web"), "shop", "web", "not signed by a known key"},
		"a key of two clusters":            {copied.token("shop", "web"), "shop", "web", "a key that copied and twin have"},
		"the own cluster's key id":         {stolen.Token("shop", "web", contract.TokenAudience), "shop", "web", "not signed by a known key"},
	} {
		id := fmt.Sprintf("spiffe://cluster.local/ns/%s/sa/%s", tc.namespace, tc.account)
		for _, cluster := range []string{"", "Kubernetes", "mid"} {
			t.Run(name+" as "+cluster, func(t *testing.T) {
				ctx := metadata.AppendToOutgoingContext(as(t.Context(), tc.token), "clusterid", cluster, "CLUSTER_ID", cluster)
				claimed := testkit.Must(structpb.NewStruct(map[string]any{"CLUSTER_ID": cluster, "ClusterID": cluster}))(t)
				res, err := create(ctx, h.dial(nil), &security.IstioCertificateRequest{
					Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}), Metadata: claimed})
				if status.Code(err) != codes.Unauthenticated || len(res.GetCertChain()) > 0 || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want UNAUTHENTICATED with %q", err, tc.says)
				}
				chain, _, err := forward(t, server, tc.token, id)
				if status.Code(err) != codes.Unauthenticated || len(chain) > 0 || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("forwarded: got %v, want UNAUTHENTICATED with %q", err, tc.says)
				}
			})
		}
		if !strings.Contains(h.log.String(), tc.says) {
			t.Errorf("no audit line has %q", tc.says)
		}
	}
	for _, want := range []string{`"cluster":"east","claimed":"spiffe://cluster.local/ns/bank/sa/web"`,
		`"cluster":"mid","claimed":"spiffe://cluster.local/ns/fairlead-xds/sa/xds-server"`} {
		if !strings.Contains(h.log.String(), want) {
			t.Errorf("no audit line has %s", want)
		}
	}
	t.Run("a forwarded token of another than the workload", func(t *testing.T) {
		if _, _, err := forward(t, server, east.token("shop", "web"), "spiffe://cluster.local/ns/bank/sa/web"); status.Code(err) !=
			codes.PermissionDenied {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a request in the name of another", func(t *testing.T) {
		metadata := testkit.Must(structpb.NewStruct(map[string]any{issuance.ImpersonatedIdentity: "spiffe://cluster.local/ns/bank/sa/web"}))(t)
		_, err := create(as(t.Context(), east.token("shop", "web")), h.dial(nil), &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}), Metadata: metadata})
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "remote cluster east") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("/debug", func(t *testing.T) {
		token := mid.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
		if code := h.get(caapi.StatusPath, token, nil); code == 200 {
			t.Error("an administrator's token of a remote cluster opens /debug")
		}
	})
}

// TestRenewalsFollowTheClustersRule: a certificate that was issued for a remote token renews by the rule of now, and
// not long without a token.
func TestRenewalsFollowTheClustersRule(t *testing.T) {
	east := newRemote(t, "east", "shop")
	h, clock, trust := trusting(t, func(o *Options) {
		o.RootTTL, o.MaxRenewalAge, o.WorkloadTTL, o.MaxWorkloadTTL = 200*time.Hour, 80*time.Hour, 85*time.Hour, 85*time.Hour
	},
		east)
	web := h.mustCreate(as(t.Context(), east.token("shop", "web")), h.dial(nil), 0)
	own := h.mustCreate(as(t.Context(), h.token("shop", "own")), h.dial(nil), 0)
	renew := func(ctx context.Context, with issued) error {
		_, err := create(ctx, h.dial(with.tls()), &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
		return err
	}
	refused := func(what, says string) {
		t.Helper()
		if err := renew(t.Context(), web); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want PERMISSION_DENIED with %q", what, err, says)
		}
	}
	testkit.NoError(t, renew(t.Context(), web))
	narrowed := *east
	narrowed.Namespaces = []string{"bank"}
	trust(&narrowed)
	refused("another rule", "remote cluster east: namespace shop")
	trust()
	refused("no trust", "not trusted any more")
	trust(east)
	testkit.NoError(t, renew(t.Context(), web))
	if !strings.Contains(h.log.String(), `"reason":"foreign_cluster"`) {
		t.Errorf("no audit line has the reason:\n%s", h.log)
	}

	clock.Advance(25 * time.Hour)
	refused("a day without a token", "send a token")
	testkit.NoError(t, renew(t.Context(), own))
	later := east.Sign(map[string]any{
		"iss": east.Issuer.Name, "sub": "system:serviceaccount:shop:web", "aud": contract.TokenAudience,
		"iat": clock.Now().Unix(), "exp": clock.Now().Add(time.Hour).Unix()})
	testkit.NoError(t, renew(as(t.Context(), later), web)) // as Istio's agent sends both
}

// TestAccountsOfARemoteClusterAreNotAskedFor: the own cluster does not know them, nor their Pods.
func TestAccountsOfARemoteClusterAreNotAskedFor(t *testing.T) {
	issuer, east := testkit.NewIssuer(t), newRemote(t, "east", "shop")
	issuer.Rotate("own-key")
	api := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "east", Namespace: contract.SystemNamespace,
		Labels: map[string]string{clusterkeys.Label: "true"}}, Data: east.Data()})
	o := defaults(t, issuer)
	o.Kubernetes, o.JWKSFile, o.Issuer, o.AdminJWKSFile = true, "", "", ""
	h := startIn(t, issuer, o, deps{Cluster: clusterOf(t, api, issuer)})
	testkit.Eventually(t, testkit.Patience, func() error { // the ca refuses all requests before it has read the cluster
		if code := h.get("/readyz", "", nil); code != http.StatusOK {
			return fmt.Errorf("/readyz answers %d", code)
		}
		return nil
	})
	token := testkit.Must(east.Pod("shop", "web", "web-0", contract.TokenAudience, time.Hour))(t)
	got := h.mustCreate(as(t.Context(), token), h.dial(nil), 0)
	h.mustCreate(t.Context(), h.dial(got.tls()), 0)
	if pods := h.server.holders.Pods(); len(pods) > 0 {
		t.Errorf("Pods of a remote cluster would be looked for in the own one: %+v", pods)
	}
	_, err := create(as(t.Context(), testkit.Must(issuer.Pod("shop", "web", "web-0", contract.TokenAudience, time.Hour))(t)), h.dial(nil),
		&security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	if status.Code(err) != codes.PermissionDenied { // the account is not in this cluster
		t.Errorf("a token of the own cluster for an account that is not there: %v", err)
	}
	var page caapi.RemoteClusters
	admin := issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	if code := h.get(caapi.ClustersPath, admin, &page); code != http.StatusOK ||
		len(page.Clusters) != 1 || page.Clusters[0].State != caapi.ClusterTrusted || len(page.Clusters[0].Keys) != 1 {
		t.Errorf("HTTP %d, page %+v", code, page)
	}
	if n := h.metric("fairlead_ca_remote_clusters", caapi.ClusterTrusted); n != 1 {
		t.Errorf("%v clusters are counted as trusted", n)
	}
}
