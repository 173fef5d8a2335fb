package auth_test

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
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

// rules of a cluster of Nomad.
var rules = []clusterkeys.NomadRule{
	{Namespace: "default", Job: "web", Task: "server", Account: "shop/web"},
	{Namespace: "default", Job: "web", Task: "*", Account: "shop/beside"},
	{Namespace: "batch", Job: "*", Task: "*", Account: "pay/batch"},
	{Namespace: "ops", Job: "*", Task: "*", Account: "istio-system/xds-server"},
	{Namespace: "bank", Job: "*", Task: "*", Account: "bank/web"},
}

// nomad is a cluster of Nomad: it signs what Nomad signs.
type nomad struct {
	t      testing.TB
	key    crypto.Signer
	alg    jose.SignatureAlgorithm
	issuer string
}

func (n *nomad) jwks() []byte {
	key := jose.JSONWebKey{Key: n.key.Public(), KeyID: "15a95f48", Algorithm: string(n.alg), Use: "sig"}
	return testkit.Must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}}))(n.t)
}

// token has the claims of a task's workload identity; change may change them.
func (n *nomad) token(namespace, job, task string, change func(map[string]any)) string {
	n.t.Helper()
	signer := testkit.Must(jose.NewSigner(jose.SigningKey{Algorithm: n.alg, Key: jose.JSONWebKey{Key: n.key, KeyID: "15a95f48"}}, nil))(n.t)
	now := time.Now()
	claims := map[string]any{
		"aud": "istio-ca", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": "1",
		"sub": "global:" + namespace + ":" + job + ":group:" + task + ":fairlead", "nomad_namespace": namespace, "nomad_job_id": job,
		"nomad_task": task, "nomad_allocation_id": "5c6328f7-48c5-4d03-bada-91ef2e904d0d",
	}
	if n.issuer != "" {
		claims["iss"] = n.issuer
	}
	if change != nil {
		change(claims)
	}
	return testkit.Must(jwt.Signed(signer).Claims(claims).Serialize())(n.t)
}

func (n *nomad) cluster(namespaces ...string) clusterkeys.Cluster {
	return clusterkeys.Cluster{Name: "nomad", Issuer: n.issuer, Keys: n.jwks(), Nomad: rules, Namespaces: namespaces}
}

// TestTasksOfNomadGetWhatARuleGivesThem with the keys that versions of Nomad sign with, and without an issuer, which
// Nomad has only with oidc_issuer.
func TestTasksOfNomadGetWhatARuleGivesThem(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	testkit.NoError(t, err)
	for name, n := range map[string]*nomad{
		"RS256":                    {key: testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t), alg: jose.RS256, issuer: "https://nomad.example"},
		"EdDSA, without an issuer": {key: edwards, alg: jose.EdDSA},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			n.t = t
			web := n.token("default", "web", "server", nil)
			m.refuses(web, "not signed by a known key")
			m.set(n.cluster("shop", "pay"))
			m.accepts(web, "spiffe://cluster.local/ns/shop/sa/web", "nomad")
			m.accepts(n.token("default", "web", "logs", nil), "spiffe://cluster.local/ns/shop/sa/beside", "nomad")
			m.accepts(n.token("batch", "a/b:c", "x", nil), "spiffe://cluster.local/ns/pay/sa/batch", "nomad")
			account := func(c map[string]any) { c["sub"] = "system:serviceaccount:shop:web" }
			for name, tc := range map[string]struct{ token, want string }{
				"a task without a rule":       {n.token("default", "api", "server", nil), `no rule is about task "server" of job "api"`},
				"another namespace":           {n.token("dev", "web", "server", nil), `in Nomad's namespace "dev"`},
				"a job that begins like one":  {n.token("default", "web-2", "server", nil), "no rule is about"},
				"an own service":              {n.token("ops", "web", "server", nil), "mesh's own services"},
				"outside of namespaces":       {n.token("bank", "web", "server", nil), "namespace bank is not one of"},
				"a service's identity":        {n.token("default", "web", "", nil), "names no namespace, job and task"},
				"an account in the subject":   {n.token("", "", "", account), "names no namespace"},
				"an account beside the task":  {n.token("dev", "web", "x", account), "no rule is about"},
				"another audience":            {n.token("default", "web", "server", func(c map[string]any) { c["aud"] = "vault.io" }), "another audience"},
				"no expiry, as without a ttl": {n.token("default", "web", "server", func(c map[string]any) { delete(c, "exp") }), "no expiry"},
				"expired":                     {n.token("default", "web", "server", func(c map[string]any) { c["exp"] = time.Now().Add(-time.Hour).Unix() }), "expired"},
				"another issuer":              {n.token("default", "web", "server", func(c map[string]any) { c["iss"] = m.own.Name }), "another issuer"},
			} {
				t.Run(name, func(t *testing.T) {
					at := *m
					at.t = t
					err := at.refuses(tc.token, tc.want)
					var of *auth.ClusterError
					if !errors.As(err, &of) || of.Cluster != "nomad" {
						t.Errorf("%v does not name the cluster", err)
					}
				})
			}
		})
	}
}

// A renewal by a certificate follows the rules of now, and a key of Nomad's proves nothing as one of Kubernetes.
func TestRulesOfNomadAreFollowed(t *testing.T) {
	m := newMesh(t)
	n := &nomad{t: t, key: testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t), alg: jose.RS256}
	m.set(n.cluster())
	web := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/web")
	testkit.NoError(t, m.CheckCluster("nomad", web))
	if err := m.CheckCluster("nomad", spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/other")); err == nil ||
		!strings.Contains(err.Error(), "no rule gives") {
		t.Errorf("an account that no rule gives: %v", err)
	}
	narrowed := n.cluster()
	narrowed.Nomad = rules[1:]
	m.set(narrowed)
	if err := m.CheckCluster("nomad", web); err == nil || !strings.Contains(err.Error(), "no rule gives") {
		t.Errorf("after the rule is gone: %v", err)
	}
	m.accepts(n.token("default", "web", "server", nil), "spiffe://cluster.local/ns/shop/sa/beside", "nomad")

	// A cluster of Kubernetes says nothing by claims of Nomad.
	east := m.issuer("east")
	m.trust("east", east, "toys")
	m.refuses(east.Sign(map[string]any{"iss": east.Name, "aud": "istio-ca", "exp": time.Now().Add(time.Hour).Unix(),
		"nomad_namespace": "default", "nomad_job_id": "web", "nomad_task": "server"}), "not a service account")
	// Whoever copies Nomad's key into an entry of Kubernetes gets nothing by it, and stops it.
	m.set(clusterkeys.Cluster{Name: "copied", Issuer: "x", Keys: n.jwks()})
	m.refuses(n.token("default", "web", "logs", nil), "a key that nomad and copied have")
}
