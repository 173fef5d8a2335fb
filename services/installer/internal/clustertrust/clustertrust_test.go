package clustertrust

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
)

// served is what an API server with the keys of issuers says.
func served(t *testing.T, issuers ...*testkit.Issuer) *Tokens {
	t.Helper()
	out := &Tokens{Issuer: "https://issuer.test"}
	for _, i := range issuers {
		out.Keys = append(out.Keys, testkit.Must(clusterkeys.PublicKeys(testkit.Must(os.ReadFile(i.JWKSFile))(t)))(t)...)
	}
	return out
}

func issuer(t *testing.T, kid string) *testkit.Issuer {
	t.Helper()
	i := testkit.NewIssuer(t)
	i.Rotate(kid)
	return i
}

// configMap is that of a cluster that is trusted already.
func configMap(t *testing.T, name string, tokens *Tokens, namespaces ...string) corev1.ConfigMap {
	t.Helper()
	c := clusterkeys.Cluster{Name: name, Issuer: tokens.Issuer, Namespaces: namespaces,
		Keys: testkit.Must(json.Marshal(jose.JSONWebKeySet{Keys: tokens.Keys}))(t)}
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-" + name, Labels: map[string]string{clusterkeys.Label: "true"}},
		Data: c.Data()}
}

func (p *Plan) states() string {
	out := ""
	for _, k := range p.Keys {
		out += fmt.Sprintf("%s %s, ", k.ID, k.State)
	}
	return strings.TrimSuffix(out, ", ")
}

// kids are the keys that are written.
func (p *Plan) kids(t *testing.T) (ids []string) {
	t.Helper()
	for _, k := range testkit.Must(clusterkeys.PublicKeys(p.Cluster.Keys))(t) {
		ids = append(ids, k.KeyID)
	}
	return ids
}

func TestKeysThatTheClusterHasNoMoreStayUntilTold(t *testing.T) {
	west, first, second := issuer(t, "west"), issuer(t, "first"), issuer(t, "second")
	want := Wanted{Name: "east", ControlPlane: "istio-system", Namespaces: []string{"shop"}}
	p := testkit.Must(Prepare(want, served(t, west), served(t, first), nil))(t)
	if p.ConfigMap != "fairlead-remote-cluster-east" || p.states() != "first new" || !p.Changes() {
		t.Errorf("got %s, %s", p.ConfigMap, p.states())
	}
	want.Namespaces = nil
	existing := []corev1.ConfigMap{configMap(t, "east", served(t, first), "shop")}
	p = testkit.Must(Prepare(want, served(t, west), served(t, first), existing))(t)
	if p.Changes() || p.ConfigMap != "of-east" {
		t.Errorf("the same again changes %s: %s", p.ConfigMap, p.states())
	}
	p = testkit.Must(Prepare(want, served(t, west), served(t, second), existing))(t)
	if p.states() != "second new, first old" || !slices.Equal(p.kids(t), []string{"second", "first"}) ||
		!slices.Equal(p.Cluster.Namespaces, []string{"shop"}) {
		t.Errorf("after a rotation: %s, keys %q, namespaces %q", p.states(), p.kids(t), p.Cluster.Namespaces)
	}
	out := &strings.Builder{}
	p.Print(out)
	for _, k := range p.Keys {
		if !strings.Contains(out.String(), k.Fingerprint) {
			t.Errorf("the fingerprint of %s is not shown:\n%s", k.ID, out)
		}
	}
	want.RemoveOldKeys = true
	p = testkit.Must(Prepare(want, served(t, west), served(t, second), existing))(t)
	if p.states() != "second new, first removed" || !slices.Equal(p.kids(t), []string{"second"}) {
		t.Errorf("told to remove: %s, keys %q", p.states(), p.kids(t))
	}
	want.Namespaces = []string{AllNamespaces}
	if p = testkit.Must(Prepare(want, served(t, west), served(t, second), existing))(t); p.Cluster.Namespaces != nil {
		t.Errorf("all namespaces are %q", p.Cluster.Namespaces)
	}
}

func TestWhatMustNotBeTrustedIsRefused(t *testing.T) {
	west, east, mid := issuer(t, "west"), issuer(t, "east"), issuer(t, "mid")
	broken := configMap(t, "east", served(t, east))
	broken.Data[clusterkeys.NamespacesKey] = "*"
	for name, tc := range map[string]struct {
		want     Wanted
		remote   *Tokens
		existing []corev1.ConfigMap
		says     string
	}{
		"the own cluster": {Wanted{Name: "east"}, served(t, west), nil, "is a key of the own cluster, too"},
		"one key of the own cluster": {Wanted{Name: "east"}, served(t, east, west), nil,
			"is a key of the own cluster, too"},
		"a key of another cluster": {Wanted{Name: "east"}, served(t, mid), []corev1.ConfigMap{configMap(t, "mid", served(t, mid))},
			"is a key of cluster mid (ConfigMap of-mid), too"},
		"no keys":             {Wanted{Name: "east"}, served(t), nil, "has no key"},
		"a name that is none": {Wanted{Name: "arn:aws/east"}, served(t, east), nil, "is no id of a cluster"},
		"the control plane's": {Wanted{Name: "east", Namespaces: []string{"shop", "istio-system"}}, served(t, east), nil,
			"is the control plane's"},
		"a pattern":             {Wanted{Name: "east", Namespaces: []string{"shop-*"}}, served(t, east), nil, "patterns are not taken"},
		"a rule that is broken": {Wanted{Name: "east"}, served(t, east), []corev1.ConfigMap{broken}, "state --namespaces"},
		"two ConfigMaps": {Wanted{Name: "east"}, served(t, east),
			[]corev1.ConfigMap{configMap(t, "east", served(t, east)), configMap(t, "east", served(t, east))}, "remove one of them"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.ControlPlane = "istio-system"
			if _, err := Prepare(tc.want, served(t, west), tc.remote, tc.existing); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
		})
	}
}

func TestIDsGetConfigMapsOfTheirOwn(t *testing.T) {
	names := map[string]string{}
	for _, id := range []string{"east", "East", "east_1", "east.1", "east-1"} {
		name := nameOf(id)
		if other, ok := names[name]; ok || !strings.HasPrefix(name, "fairlead-remote-cluster-east") {
			t.Errorf("%s and %s have the ConfigMap %s", id, other, name)
		}
		names[name] = id
	}
}
