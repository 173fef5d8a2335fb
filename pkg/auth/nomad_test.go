package auth_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/token"
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
	token.Nomad
	t testing.TB
}

func newNomad(t testing.TB, issuer string, edwards bool) *nomad {
	t.Helper()
	return &nomad{testkit.Must(token.NewNomad(issuer, edwards))(t), t}
}

func (n *nomad) jwks() []byte { return testkit.Must(n.JWKS())(n.t) }

func (n *nomad) token(namespace, job, task string, change func(map[string]any)) string {
	n.t.Helper()
	return testkit.Must(n.Task(namespace, job, task, change))(n.t)
}

func (n *nomad) cluster(namespaces ...string) clusterkeys.Cluster {
	return clusterkeys.Cluster{Name: "nomad", Issuer: n.Name, Keys: n.jwks(), Nomad: rules, Namespaces: namespaces}
}

// TestTasksOfNomadGetWhatARuleGivesThem with the keys that versions of Nomad sign with, and without an issuer, which
// Nomad has only with oidc_issuer.
func TestTasksOfNomadGetWhatARuleGivesThem(t *testing.T) {
	for name, n := range map[string]*nomad{
		"RS256":                    newNomad(t, "https://nomad.example", false),
		"EdDSA, without an issuer": newNomad(t, "", true),
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
	n := newNomad(t, "", false)
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
