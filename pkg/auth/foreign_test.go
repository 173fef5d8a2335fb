package auth_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
)

// mesh verifies tokens of its own cluster and of further ones, which add writes.
type mesh struct {
	*auth.JWT
	t        testing.TB
	clock    *testkit.Clock
	own      *testkit.Issuer
	file     string
	clusters []clusterkeys.Cluster
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	m := &mesh{t: t, clock: testkit.NewClock(time.Now()), own: testkit.NewIssuer(t), file: filepath.Join(t.TempDir(), "clusters.json")}
	m.own.Rotate("west-1")
	var err error
	m.JWT, err = auth.NewJWT(auth.JWTConfig{
		JWKSFile: m.own.JWKSFile, Issuer: m.own.Name, Audiences: []string{"istio-ca"}, TrustDomain: td, Clock: m.clock,
		ClustersFile: m.file, Reserved: func(namespace, _ string) bool { return namespace == "istio-system" },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// issuer is a further cluster with a key of its own and the same issuer text as every other.
func (m *mesh) issuer(name string) *testkit.Issuer {
	i := testkit.NewIssuer(m.t)
	i.Rotate(name + "-1")
	return i
}

// trust adds a cluster with the keys that its file has now.
func (m *mesh) trust(name string, i *testkit.Issuer, namespaces ...string) {
	m.t.Helper()
	raw := testkit.Must(os.ReadFile(i.JWKSFile))(m.t)
	m.set(clusterkeys.Cluster{Name: name, Issuer: i.Name, Keys: raw, Namespaces: namespaces})
}

func (m *mesh) set(c clusterkeys.Cluster) {
	m.t.Helper()
	m.clusters = append(slices.DeleteFunc(m.clusters, func(o clusterkeys.Cluster) bool { return o.Name == c.Name }), c)
	m.write()
}

func (m *mesh) write() {
	m.t.Helper()
	testkit.WriteFile(m.t, m.file, testkit.Must(clusterkeys.Write(m.clusters))(m.t))
	m.clock.Advance(2 * time.Second)
}

func (m *mesh) refuses(token, want string) error {
	m.t.Helper()
	p, err := m.Verify(m.t.Context(), token)
	if err == nil || !strings.Contains(err.Error(), want) {
		m.t.Errorf("got %s of cluster %q, %v; want an error with %q", p.ID, p.Cluster, err, want)
	}
	return err
}

func (m *mesh) accepts(token, id, cluster string) {
	m.t.Helper()
	p, err := m.Verify(m.t.Context(), token)
	if err != nil || p.ID.String() != id || p.Cluster != cluster || p.Method != auth.MethodJWT || p.Token == nil {
		m.t.Errorf("got %s of cluster %q, %v; want %s of %q", p.ID, p.Cluster, err, id, cluster)
	}
}

func TestAFurtherClusterProvesWhatItMayAndNothingElse(t *testing.T) {
	m := newMesh(t)
	east, mid := m.issuer("east"), m.issuer("mid")
	token := func(i *testkit.Issuer, namespace, account string) string {
		return i.Token(namespace, account, "istio-ca")
	}
	m.refuses(token(east, "shop", "web"), "not signed by a known key")
	m.trust("east", east, "shop", "pay")
	m.trust("mid", mid)

	m.accepts(token(m.own, "istio-system", "ca"), "spiffe://cluster.local/ns/istio-system/sa/ca", "")
	m.accepts(token(east, "shop", "web"), "spiffe://cluster.local/ns/shop/sa/web", "east")
	m.accepts(token(mid, "any", "web"), "spiffe://cluster.local/ns/any/sa/web", "mid")
	for name, tc := range map[string]struct{ token, want string }{
		"a namespace that is not its own": {token(east, "bank", "web"), "remote cluster east: namespace bank is not one of"},
		"an own service":                  {token(east, "istio-system", "xds-server"), "mesh's own services"},
		"an own service, without a list":  {token(mid, "istio-system", "config-watcher"), "remote cluster mid: service account istio-system/"},
		"an account beside own services":  {token(mid, "istio-system", "default"), "mesh's own services"},
		"another audience":                {east.Token("shop", "web", "vault"), "another audience"},
		"an administrator's audience":     {mid.Token("any", "fairlead-admin", "fairlead"), "another audience"},
		"a user": {east.Sign(jwt.Claims{Issuer: east.Name, Subject: "alice", Audience: jwt.Audience{"istio-ca"},
			Expiry: jwt.NewNumericDate(m.clock.Now().Add(time.Hour))}), "not a service account"},
		"no expiry": {east.Sign(jwt.Claims{Issuer: east.Name, Subject: "system:serviceaccount:shop:web", Audience: jwt.Audience{"istio-ca"}}),
			"no expiry"},
	} {
		t.Run(name, func(t *testing.T) {
			at := *m
			at.t = t
			err := at.refuses(tc.token, tc.want)
			var of *auth.ClusterError
			if !errors.As(err, &of) || of.Cluster == "" {
				t.Errorf("%v does not name the cluster", err)
			}
		})
	}
}

// Of two clusters with one issuer text the key decides; what else a token says decides nothing.
func TestTheKeyDecidesTheCluster(t *testing.T) {
	m := newMesh(t)
	east, mid := m.issuer("east"), m.issuer("mid")
	m.trust("east", east, "shop")
	m.trust("mid", mid, "bank")
	claimed := func(i *testkit.Issuer, cluster string) string {
		return i.Sign(map[string]any{
			"iss": i.Name, "sub": "system:serviceaccount:bank:web", "aud": "istio-ca", "exp": m.clock.Now().Add(time.Hour).Unix(),
			"CLUSTER_ID": cluster, "cluster": cluster, "kubernetes.io": map[string]any{"cluster": cluster, "namespace": "bank"},
		})
	}
	m.accepts(claimed(mid, "east"), "spiffe://cluster.local/ns/bank/sa/web", "mid")
	for _, says := range []string{"mid", "west", ""} {
		m.refuses(claimed(east, says), "remote cluster east: namespace bank")
	}
	thief := *east // east's key under the key ids of others
	for _, kid := range []string{mid.KeyID, m.own.KeyID, ""} {
		thief.KeyID = kid
		m.refuses(thief.Token("bank", "web", "istio-ca"), "not signed by a known key")
	}
	// A set that claims the id of another's key takes nothing from it, and gets nothing.
	twin := m.issuer("twin")
	twin.Rotate(mid.KeyID)
	m.trust("twin", twin, "toys")
	m.accepts(claimed(mid, ""), "spiffe://cluster.local/ns/bank/sa/web", "mid")
	m.refuses(twin.Token("bank", "web", "istio-ca"), "remote cluster twin")
	m.accepts(twin.Token("toys", "web", "istio-ca"), "spiffe://cluster.local/ns/toys/sa/web", "twin")
	twin.Rotate(m.own.KeyID)
	m.trust("twin", twin, "toys")
	m.accepts(m.own.Token("bank", "web", "istio-ca"), "spiffe://cluster.local/ns/bank/sa/web", "")
	m.refuses(twin.Token("bank", "web", "istio-ca"), "remote cluster twin")
	t.Run("and then the issuer must be its own", func(t *testing.T) {
		m.t = t
		east.Name = "https://other"
		m.refuses(east.Token("shop", "web", "istio-ca"), "remote cluster east: token is from another issuer")
		m.trust("east", east, "shop")
		m.accepts(east.Token("shop", "web", "istio-ca"), "spiffe://cluster.local/ns/shop/sa/web", "east")
		east.Name = m.own.Name
		m.refuses(east.Token("shop", "web", "istio-ca"), "remote cluster east: token is from another issuer")
	})
}

func TestAKeyOfTwoClustersVerifiesNothing(t *testing.T) {
	m := newMesh(t)
	east := m.issuer("east")
	token := east.Token("shop", "web", "istio-ca")
	m.trust("east", east)
	m.accepts(token, "spiffe://cluster.local/ns/shop/sa/web", "east")
	copied := *east
	copied.KeyID = "another-id"
	copied.JWKSFile = filepath.Join(t.TempDir(), "jwks.json")
	copied.WriteJWKS()
	m.trust("mid", &copied)
	m.refuses(token, "a key that east and mid have")
	m.refuses(copied.Token("shop", "web", "istio-ca"), "a key that east and mid have")
	if err := m.CheckClusters(); err == nil || !strings.Contains(err.Error(), "east and mid have the same key") {
		t.Errorf("CheckClusters says %v", err)
	}
	m.clusters = m.clusters[:1]
	m.write()
	m.accepts(token, "spiffe://cluster.local/ns/shop/sa/web", "east")

	own := m.own.Token("shop", "web", "istio-ca")
	m.accepts(own, "spiffe://cluster.local/ns/shop/sa/web", "")
	// The own cluster's key is its own, whatever an entry says, also under the id of another.
	m.trust("mid", m.own)
	m.accepts(own, "spiffe://cluster.local/ns/shop/sa/web", "")
	renamed := *m.own
	renamed.KeyID = "mid-1"
	renamed.JWKSFile = filepath.Join(t.TempDir(), "jwks.json")
	renamed.WriteJWKS()
	m.trust("mid", &renamed)
	m.accepts(own, "spiffe://cluster.local/ns/shop/sa/web", "")
	m.refuses(renamed.Token("shop", "web", "istio-ca"), "a key that the own cluster and mid have")
	if err := m.CheckClusters(); err == nil || !strings.Contains(err.Error(), "its tokens are the own cluster's") {
		t.Errorf("CheckClusters says %v", err)
	}
	m.accepts(token, "spiffe://cluster.local/ns/shop/sa/web", "east")
	m.clusters = m.clusters[:1]
	m.write()
	m.accepts(own, "spiffe://cluster.local/ns/shop/sa/web", "")
	if err := m.CheckClusters(); err != nil {
		t.Error(err)
	}
}

func TestFurtherClustersAreFollowed(t *testing.T) {
	m := newMesh(t)
	east := m.issuer("east")
	m.trust("east", east)
	old := east.Token("shop", "web", "istio-ca")
	web := "spiffe://cluster.local/ns/shop/sa/web"
	m.accepts(old, web, "east")
	east.Rotate("east-2")
	raw := testkit.Must(os.ReadFile(east.JWKSFile))(t)
	next := east.Token("shop", "web", "istio-ca")
	m.clusters[0].Keys = raw
	testkit.WriteFile(t, m.file, testkit.Must(clusterkeys.Write(m.clusters))(t))
	m.accepts(next, web, "east") // at once: the clock stands
	m.refuses(old, "not signed by a known key")

	testkit.WriteFile(t, m.file, []byte(`{"clusters": [{"cluster": "east"`))
	m.clock.Advance(2 * time.Second)
	m.accepts(next, web, "east")
	if err := m.CheckClusters(); err == nil || !strings.Contains(err.Error(), m.file) {
		t.Errorf("CheckClusters says %v of a file that is cut off", err)
	}
	if err := m.Check(); err != nil {
		t.Errorf("the own keys are in order, and Check says %v", err)
	}
	shop := spiffeid.RequireFromString(web)
	testkit.NoError(t, m.CheckCluster("east", shop))
	m.trust("east", east, "bank")
	if err := m.CheckCluster("east", shop); err == nil || !strings.Contains(err.Error(), "namespace shop") {
		t.Errorf("after the rule has changed: %v", err)
	}
	if err := os.Remove(m.file); err != nil {
		t.Fatal(err)
	}
	m.clock.Advance(2 * time.Second)
	m.refuses(next, "not signed by a known key")
	if err := m.CheckCluster("east", shop); err == nil || !strings.Contains(err.Error(), "not trusted any more") {
		t.Errorf("after the cluster is gone: %v", err)
	}
	testkit.NoError(t, m.CheckClusters())
}

// Nothing in the mesh knows identities of another trust domain, so an entry that names one gets none, whoever wrote it.
func TestAnotherTrustDomainIsRefused(t *testing.T) {
	m := newMesh(t)
	east := m.issuer("east")
	raw := testkit.Must(os.ReadFile(east.JWKSFile))(t)
	m.set(clusterkeys.Cluster{Name: "east", Issuer: east.Name, Keys: raw, TrustDomain: "east.local"})
	err := m.refuses(east.Token("shop", "web", "istio-ca"), "remote cluster east: field trustDomain: east.local is not the mesh's")
	var of *auth.ClusterError
	if !errors.As(err, &of) || of.ID.String() != "spiffe://east.local/ns/shop/sa/web" {
		t.Errorf("%v does not say which identity the token claims", err)
	}
	for _, id := range []string{"spiffe://cluster.local/ns/shop/sa/web", "spiffe://east.local/ns/shop/sa/web"} {
		if err := m.CheckCluster("east", spiffeid.RequireFromString(id)); err == nil {
			t.Errorf("the cluster may have %s", id)
		}
	}
	if err := m.CheckClusters(); err == nil || !strings.Contains(err.Error(), "remote cluster east: field trustDomain") {
		t.Errorf("CheckClusters says %v", err)
	}
	m.set(clusterkeys.Cluster{Name: "east", Issuer: east.Name, Keys: raw, TrustDomain: "cluster.local"})
	m.accepts(east.Token("shop", "web", "istio-ca"), "spiffe://cluster.local/ns/shop/sa/web", "east")
	for _, subject := range []string{"spiffe://east.local/ns/shop/sa/web", "system:serviceaccount:east.local:shop:web"} {
		err := m.refuses(east.Sign(jwt.Claims{Issuer: east.Name, Subject: subject, Audience: jwt.Audience{"istio-ca"},
			Expiry: jwt.NewNumericDate(m.clock.Now().Add(time.Hour))}), "not a service account")
		if !errors.As(err, &of) || of.Cluster != "east" {
			t.Errorf("%v does not name the cluster", err)
		}
	}
	if err := m.CheckCluster("east", spiffeid.RequireFromString("spiffe://east.local/ns/shop/sa/web")); err == nil {
		t.Error("the cluster may have an identity of another trust domain")
	}
}

// A list of reserved identities must not be forgotten.
func TestFurtherClustersNeedReservedIdentities(t *testing.T) {
	_, err := auth.NewJWT(auth.JWTConfig{JWKSFile: "a", Issuer: "i", Audiences: []string{"a"}, TrustDomain: td, ClustersFile: "c"})
	if err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("got %v", err)
	}
}

// rsaToken signs as Kubernetes does by default.
func rsaToken(t testing.TB, kid string) (token string, keys []byte) {
	t.Helper()
	key := testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t)
	signer := testkit.Must(jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil))(t)
	now := time.Now()
	token = testkit.Must(jwt.Signed(signer).Claims(map[string]any{
		"iss": "https://issuer.test", "sub": "system:serviceaccount:shop:web", "aud": []string{"istio-ca"}, "iat": now.Unix(),
		"exp": now.Add(time.Hour).Unix(), "kubernetes.io": map[string]any{"namespace": "shop",
			"pod": map[string]any{"name": "web-0", "uid": "p1"}, "serviceaccount": map[string]any{"name": "web", "uid": "a1"}},
	}).Serialize())(t)
	keys = testkit.Must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: key.Public(), KeyID: kid, Algorithm: "RS256", Use: "sig"},
	}}))(t)
	return token, keys
}

// manyClusters is a mesh of as many clusters as there may be, and a token of the own and of the last one.
func manyClusters(t testing.TB) (m *mesh, local, remote string) {
	t.Helper()
	m = newMesh(t)
	local, own := rsaToken(t, "own")
	testkit.WriteFile(t, m.own.JWKSFile, own)
	for i := range clusterkeys.MaxClusters - 1 {
		name := fmt.Sprint("c", i)
		other := m.issuer(name)
		m.clusters = append(m.clusters, clusterkeys.Cluster{Name: name, Issuer: other.Name,
			Keys: testkit.Must(os.ReadFile(other.JWKSFile))(t)})
	}
	remote, keys := rsaToken(t, "last")
	m.set(clusterkeys.Cluster{Name: "last", Issuer: "https://issuer.test", Keys: keys, Namespaces: []string{"a", "b", "shop"}})
	m.accepts(local, "spiffe://cluster.local/ns/shop/sa/web", "")
	m.accepts(remote, "spiffe://cluster.local/ns/shop/sa/web", "last")
	return m, local, remote
}

// BenchmarkVerify compares a token of the own cluster with one of the last of a hundred others.
func BenchmarkVerify(b *testing.B) {
	m, local, remote := manyClusters(b)
	for name, token := range map[string]string{"local": local, "remote": remote} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Verify(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A token of a further cluster costs no more than a tenth more than one of the own. Both are measured in turn, and the
// quickest rounds compared, which what else runs on the machine disturbs least.
func TestTokensOfFurtherClustersCostAsMuch(t *testing.T) {
	m, local, remote := manyClusters(t)
	round := func(token string) time.Duration {
		began := time.Now()
		for range 10 {
			if _, err := m.Verify(t.Context(), token); err != nil {
				t.Fatal(err)
			}
		}
		return time.Since(began)
	}
	here, there := time.Hour, time.Hour
	for range 100 {
		here, there = min(here, round(local)), min(there, round(remote))
	}
	if ratio := float64(there) / float64(here); ratio > 1.1 {
		t.Errorf("a token of a further cluster costs %.2f times one of the own: %v, %v", ratio, there, here)
	}
}
