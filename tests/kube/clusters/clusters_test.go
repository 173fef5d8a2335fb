package clusters

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// TestAttackByARemoteCluster is what the owner of a remote cluster may try, who makes tokens of any account there. east
// has the same issuer as west, mid-other has one of its own. Then it holds what the rightful get, also while east's API
// server is away.
func TestAttackByARemoteCluster(t *testing.T) {
	m := startMesh(t, startClusters(t, "west", "east", "mid-other", "stranger"))
	ca, xds := m.dial(m.caAddr, caName, nil), m.dial(m.xdsAddr, xdsName, nil)
	web := m.token("east", "shop", "web")
	if _, _, err := m.certify(as(t.Context(), web), ca); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("before east is trusted: %v", err)
	}
	m.trust("east", "--namespaces", "shop,pay")
	m.trust("mid-other")
	m.states("trusted", 2)
	m.xdsKnows("mid-other")

	t.Run("gets no other identity", func(t *testing.T) { m.attacks(t, ca, xds) })
	t.Run("leaves an audit line of each refusal", m.audited)
	t.Run("gets its own identity", func(t *testing.T) { m.rightful(t, ca, xds, web) })
	t.Run("a key of two clusters is refused for both", m.sharedKey)
	t.Run("forwards nothing", m.forwards)
	t.Run("west's own key in a ConfigMap stops nothing", m.ownKey)
	t.Run("another trust domain is refused", m.otherDomain)
	t.Run("tasks of Nomad", m.nomad)
	t.Run("a broken ConfigMap keeps what it said", m.broken)
	t.Run("the command refuses what must not be trusted", m.refusals)
	t.Run("the ca reads no other ConfigMap", m.rights)
	t.Run("after its keys have rotated", m.rotated)
	t.Run("with its API server away", m.away)
}

// xdsKnows waits until the ca has written a cluster into fairlead-jwks, and hands it to xds-server.
func (m *mesh) xdsKnows(cluster string) {
	m.t.Helper()
	testkit.Eventually(m.t, patience, func() error {
		found, err := m.west.Client(m.t).CoreV1().ConfigMaps(meshNamespace).Get(m.t.Context(), "fairlead-jwks", metav1.GetOptions{})
		if err == nil && !strings.Contains(found.Data["remote-clusters.json"], cluster) {
			err = fmt.Errorf("fairlead-jwks has no %s", cluster)
		}
		return err
	})
	m.kubelet()
}

// stream opens a stream of ADS with a token and returns why it is refused; what the client states is the cluster.
func (m *mesh) stream(t *testing.T, conn *grpc.ClientConn, token, namespace, cluster string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	node := adstest.Node(adstest.Sidecar("10.9.9.9", "web-0", namespace), map[string]any{"CLUSTER_ID": cluster, "NAMESPACE": namespace})
	s, err := adstest.OpenDelta(as(ctx, token), conn, node)
	if err != nil {
		return err
	}
	_ = s.Subscribe(resource.ClusterType) // of a stream that is closed already, Next says why
	_, err = s.Next(resource.ClusterType)
	return err
}

// attempt is a token by which somebody would have an identity.
type attempt struct{ cluster, namespace, account, audience, says string }

// attempts are what the owners of east, mid-other and of a cluster that is not trusted may have signed.
func attempts() map[string]attempt {
	return map[string]attempt{
		"another namespace":                 {"east", "bank", "web", "", "remote cluster east: namespace bank"},
		"a namespace that begins like one":  {"east", "shop-2", "web", "", "remote cluster east: namespace shop-2"},
		"the ca":                            {"east", meshNamespace, "ca", "", "mesh's own services"},
		"the xds-server, without a rule":    {"mid-other", meshNamespace, "xds-server", "", "mesh's own services"},
		"config-watcher, without a rule":    {"mid-other", meshNamespace, "config-watcher", "", "mesh's own services"},
		"an account beside them":            {"mid-other", meshNamespace, "default", "", "mesh's own services"},
		"an administrator":                  {"mid-other", meshNamespace, "fairlead-admin", "fairlead", "another audience"},
		"an unknown key with west's issuer": {"stranger", "shop", "web", "", "not signed by a known key"},
		"a token for its own API server":    {"east", "shop", "web", kubeapi.Issuer, "another audience"},
	}
}

func (m *mesh) signed(a attempt) string {
	m.t.Helper()
	if a.audience == "" {
		return m.token(a.cluster, a.namespace, a.account)
	}
	return m.token(a.cluster, a.namespace, a.account, a.audience)
}

func (m *mesh) attacks(t *testing.T, ca, xds *grpc.ClientConn) {
	for name, tc := range attempts() {
		token := m.signed(tc)
		for _, states := range []string{"west", "mid-other", "Kubernetes"} {
			t.Run(name+" that states "+states, func(t *testing.T) {
				ctx := as(t.Context(), token, "clusterid", states, "CLUSTER_ID", states, "x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/shop/sa/web")
				for what, conn := range map[string]*grpc.ClientConn{"ca": ca, "xds-server": xds} {
					if id, _, err := m.certify(ctx, conn); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says) {
						t.Errorf("%s: certificate of %q, %v; want UNAUTHENTICATED with %q", what, id, err, tc.says)
					}
				}
				if err := m.stream(t, xds, token, tc.namespace, states); status.Code(err) != codes.Unauthenticated {
					t.Errorf("a stream: %v", err)
				}
			})
		}
	}
}

// audited holds that a refusal is a line of the ca's log, with the cluster and the identity that the token claims. It
// asks until there is one, because the lines of those who prove nothing are limited.
func (m *mesh) audited(t *testing.T) {
	ca := m.dial(m.caAddr, caName, nil)
	for name, tc := range attempts() {
		ctx := as(t.Context(), m.signed(tc))
		wants := []string{`"decision":"refused"`, tc.says}
		if tc.cluster != "stranger" {
			wants = append(wants, fmt.Sprintf(`"cluster":%q,"claimed":"spiffe://cluster.local/ns/%s/sa/%s"`, tc.cluster, tc.namespace, tc.account))
		}
		m.logged(name, wants, func() { _, _, _ = m.certify(ctx, ca) })
	}
}

// logged does something until the ca's log has a line with all texts, of what was written meanwhile.
func (m *mesh) logged(what string, texts []string, do func()) {
	m.t.Helper()
	before := len(testkit.Must(os.ReadFile(m.log("ca")))(m.t))
	testkit.Eventually(m.t, patience, func() error {
		do()
		for line := range strings.Lines(string(testkit.Must(os.ReadFile(m.log("ca")))(m.t)[before:])) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return nil
			}
		}
		return fmt.Errorf("%s: no line of the ca's log has %q", what, texts)
	})
}

// forwards is what a workload of east tries that plays an xds-server, with the certificate that it has.
func (m *mesh) forwards(t *testing.T) {
	web := m.token("east", "shop", "web")
	cert := m.issued(t, as(t.Context(), web), m.dial(m.caAddr, caName, nil), "spiffe://cluster.local/ns/shop/sa/web")
	conn := m.dial(m.caAddr, caName, cert)
	for name, req := range map[string]*cav1.ForwardCertificateRequestRequest{
		"a token of its own":     {Token: web, Identity: "spiffe://cluster.local/ns/shop/sa/web"},
		"in the xds-server's":    {Token: web, Identity: "spiffe://cluster.local/ns/istio-system/sa/xds-server"},
		"a token of west's":      {Token: m.token("west", "bank", "web"), Identity: "spiffe://cluster.local/ns/bank/sa/web"},
		"another trust domain's": {Token: web, Identity: "spiffe://east.local/ns/shop/sa/web"},
	} {
		res, err := cav1.NewForwardingServiceClient(conn).ForwardCertificateRequest(t.Context(), req)
		if status.Code(err) != codes.PermissionDenied || len(res.GetCertificateChain()) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ownKey holds that an entry with west's own key takes nothing from west, and gets nothing.
func (m *mesh) ownKey(t *testing.T) {
	maps := m.west.Client(t).CoreV1().ConfigMaps(meshNamespace)
	found := testkit.Must(maps.Get(t.Context(), "fairlead-jwks", metav1.GetOptions{}))(t)
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: map[string]string{clusterkeys.Label: "true"}},
		Data: map[string]string{"cluster": "own", "issuer": found.Data["issuer"], "jwks.json": found.Data["jwks.json"],
			"namespaces": "shop"},
	}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	m.states("shared_key", 1)
	m.xdsKnows(`"own"`)
	bank := m.token("west", "bank", "own")
	m.issued(t, as(t.Context(), bank), m.dial(m.caAddr, caName, nil), "spiffe://cluster.local/ns/bank/sa/own")
	testkit.NoError(t, m.stream(t, m.dial(m.xdsAddr, xdsName, nil), bank, "bank", "west"))
	testkit.NoError(t, maps.Delete(t.Context(), "own", metav1.DeleteOptions{}))
	m.states("shared_key", 0)
}

// otherDomain holds that an entry that names another trust domain than the mesh's has no tokens taken.
func (m *mesh) otherDomain(t *testing.T) {
	if out, err := m.fairlead("remote-clusters", "trust", "--context", "stranger", "--trust-domain", "far.local", "--yes"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.states("refused", 1)
	ca, token := m.dial(m.caAddr, caName, nil), m.token("stranger", "shop", "web")
	m.logged("another trust domain", []string{`"decision":"refused"`, "not signed by a known key"}, func() {
		if id, _, err := m.certify(as(t.Context(), token), ca); status.Code(err) != codes.Unauthenticated {
			t.Errorf("certificate of %q, %v", id, err)
		}
	})
	if log := string(testkit.Must(os.ReadFile(m.log("ca")))(t)); !strings.Contains(log, "far.local is not the mesh's") {
		t.Error("the ca's log does not name the field")
	}
	testkit.NoError(t, m.west.Client(t).CoreV1().ConfigMaps(meshNamespace).Delete(t.Context(), "fairlead-remote-cluster-stranger",
		metav1.DeleteOptions{}))
	m.states("refused", 0)
}

func (m *mesh) rightful(t *testing.T, ca, xds *grpc.ClientConn, web string) {
	const id = "spiffe://cluster.local/ns/shop/sa/web"
	cert := m.issued(t, as(t.Context(), web), ca, id)
	m.issued(t, as(t.Context(), web), xds, id) // forwarded
	m.issued(t, t.Context(), m.dial(m.caAddr, caName, cert), id)
	m.issued(t, as(t.Context(), m.token("mid-other", "any", "web")), ca, "spiffe://cluster.local/ns/any/sa/web")
	m.issued(t, as(t.Context(), m.token("west", "any", "own")), ca, "spiffe://cluster.local/ns/any/sa/own")
	testkit.NoError(t, m.stream(t, xds, web, "shop", "east"))
	if other := m.configMap("mid-other").Data["issuer"]; other != "https://mid-other.example" {
		t.Errorf("mid-other has the issuer %s", other)
	}
}

// issued asks for a certificate, which must be of an identity.
func (m *mesh) issued(t *testing.T, ctx context.Context, conn *grpc.ClientConn, id string) (cert *tls.Certificate) { //nolint:revive // t first
	t.Helper()
	got, cert, err := m.certify(ctx, conn)
	if err != nil || got != id {
		t.Fatalf("certificate of %q, %v; want %s", got, err, id)
	}
	return cert
}

// refused waits until the ca refuses a certificate, which it does within a second of what it says itself.
func (m *mesh) refused(ctx context.Context, conn *grpc.ClientConn, code codes.Code, says string) {
	m.t.Helper()
	testkit.Eventually(m.t, patience, func() error {
		if id, _, err := m.certify(ctx, conn); status.Code(err) != code || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("certificate of %q, %w; want %s with %q", id, err, code, says)
		}
		return nil
	})
}

func (m *mesh) sharedKey(t *testing.T) {
	maps := m.west.Client(t).CoreV1().ConfigMaps(meshNamespace)
	copied := m.configMap("east")
	data := copied.Data
	data["cluster"] = "copied"
	delete(data, "namespaces")
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copied", Labels: copied.Labels}, Data: data},
		metav1.CreateOptions{})
	testkit.NoError(t, err)
	m.states("shared_key", 2)
	ca := m.dial(m.caAddr, caName, nil)
	for _, namespace := range []string{"shop", "bank"} {
		m.refused(as(t.Context(), m.token("east", namespace, "web")), ca, codes.Unauthenticated, "copied")
	}
	testkit.NoError(t, maps.Delete(t.Context(), "copied", metav1.DeleteOptions{}))
	m.states("shared_key", 0)
	testkit.Eventually(t, patience, func() error {
		_, _, err := m.certify(as(t.Context(), m.token("east", "shop", "web")), ca)
		return err
	})
	m.issued(t, as(t.Context(), m.token("east", "shop", "web")), ca, "spiffe://cluster.local/ns/shop/sa/web")
}

func (m *mesh) broken(t *testing.T) {
	maps := m.west.Client(t).CoreV1().ConfigMaps(meshNamespace)
	good := m.configMap("east")
	bad := good.DeepCopy()
	bad.Data["jwks.json"] = bad.Data["jwks.json"][:len(bad.Data["jwks.json"])/2]
	_, err := maps.Update(t.Context(), bad, metav1.UpdateOptions{})
	testkit.NoError(t, err)
	m.states("refused", 1)
	ca := m.dial(m.caAddr, caName, nil)
	m.issued(t, as(t.Context(), m.token("east", "shop", "web")), ca, "spiffe://cluster.local/ns/shop/sa/web")
	if _, _, err := m.certify(as(t.Context(), m.token("east", "bank", "web")), ca); err == nil {
		t.Error("the rule of the last good content does not hold")
	}
	m.trust("east", "--namespaces", "shop,pay")
	m.states("refused", 0)
}

func (m *mesh) refusals(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"the own cluster":           {[]string{"--context", "west", "--name", "other", "--yes"}, "is a key of the own cluster, too"},
		"a cluster by another name": {[]string{"--context", "east", "--name", "other", "--yes"}, "is a key of cluster east"},
		"the control plane":         {[]string{"--context", "stranger", "--namespaces", "istio-system", "--yes"}, "is the control plane's"},
		"without an answer":         {[]string{"--context", "stranger"}, "--yes answers yes"},
	} {
		out, err := m.fairlead(append([]string{"remote-clusters", "trust"}, tc.args...)...)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	out, err := m.fairlead("remote-clusters", "trust", "--context", "east", "--yes")
	if err != nil || !strings.Contains(out, "says so already") || !strings.Contains(out, "shop, pay") {
		t.Errorf("again: %v, %s", err, out)
	}
	m.states("trusted", 2)
}

// rights holds what the ca may with the objects of an installation.
func (m *mesh) rights(t *testing.T) {
	client := testkit.Must(kubernetes.NewForConfig(kubeapi.Load(t, m.west.ServiceAccount(t, meshNamespace, "ca"))))(t)
	if _, err := client.CoreV1().ConfigMaps(meshNamespace).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"ConfigMaps of another namespace": func() error {
			_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"Secrets": func() error {
			_, err := client.CoreV1().Secrets(meshNamespace).List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"a ConfigMap that it would change": client.CoreV1().ConfigMaps(meshNamespace).Delete(t.Context(), "fairlead-remote-cluster-east",
			metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// rotated holds what the command does after east has got a new key: tokens of both count until the old one is removed.
func (m *mesh) rotated(t *testing.T) {
	const id = "spiffe://cluster.local/ns/shop/sa/web"
	ca := m.dial(m.caAddr, caName, nil)
	before := m.token("east", "shop", "web")
	m.servers["east"].RotateTokenKey(t, "second")
	after := m.token("east", "shop", "web")
	m.refused(as(t.Context(), after), ca, codes.Unauthenticated, "not signed by a known key")
	m.trust("east")
	accepted := func(token string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			got, _, err := m.certify(as(t.Context(), token), ca)
			if err == nil && got != id {
				err = fmt.Errorf("certificate of %s", got)
			}
			return err
		})
	}
	accepted(after)
	accepted(before)
	if rule := m.configMap("east").Data["namespaces"]; rule != "shop,pay" {
		t.Errorf("the rule has become %q", rule)
	}
	m.xdsKnows("mid-other")
}

// away is the end: east's API server is gone, also when the ca starts.
func (m *mesh) away(t *testing.T) {
	const id = "spiffe://cluster.local/ns/shop/sa/web"
	web := m.token("east", "shop", "web")
	m.servers["east"].Stop(t)
	cert := m.issued(t, as(t.Context(), web), m.dial(m.caAddr, caName, nil), id)
	testkit.NoError(t, m.ca.Stop(patience))
	m.startCA()
	ca := m.dial(m.caAddr, caName, nil)
	m.issued(t, as(t.Context(), web), ca, id)
	m.issued(t, t.Context(), m.dial(m.caAddr, caName, cert), id)
	testkit.NoError(t, m.stream(t, m.dial(m.xdsAddr, xdsName, nil), web, "shop", "east"))
	testkit.NoError(t, m.west.Client(t).CoreV1().ConfigMaps(meshNamespace).Delete(t.Context(), "fairlead-remote-cluster-east",
		metav1.DeleteOptions{}))
	m.states("trusted", 1)
	m.refused(as(t.Context(), web), ca, codes.Unauthenticated, "not signed by a known key")
	m.refused(t.Context(), m.dial(m.caAddr, caName, cert), codes.PermissionDenied, "not trusted any more")
	m.servers["east"].Resume(t)
}
