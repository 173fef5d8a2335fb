package clusterkeys_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
)

// east is the data of a ConfigMap that is in order.
func east(t testing.TB) map[string]string {
	t.Helper()
	issuer := testkit.NewIssuer(t)
	return map[string]string{
		clusterkeys.NameKey: "east", clusterkeys.IssuerKey: issuer.Name,
		clusterkeys.KeysKey: string(testkit.Must(os.ReadFile(issuer.JWKSFile))(t)),
	}
}

func TestAClusterIsReadAsItIsWritten(t *testing.T) {
	data := east(t)
	data[clusterkeys.NamespacesKey], data[clusterkeys.TrustDomainKey] = "shop, pay\nbank", "east.local"
	c := testkit.Must(clusterkeys.Parse(data))(t)
	if !slices.Equal(c.Namespaces, []string{"shop", "pay", "bank"}) || !c.Allows("pay") || c.Allows("toys") {
		t.Errorf("namespaces are %q", c.Namespaces)
	}
	again := testkit.Must(clusterkeys.Parse(c.Data()))(t)
	raw := testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{again}))(t)
	read := testkit.Must(clusterkeys.Read(raw))(t)
	if len(read) != 1 || !maps.Equal(read[0].Data(), c.Data()) {
		t.Errorf("got %+v of %+v", read, c)
	}
	delete(data, clusterkeys.NamespacesKey)
	if c := testkit.Must(clusterkeys.Parse(data))(t); !c.Allows("any") {
		t.Error("without namespaces some are not allowed")
	}
}

func TestBrokenClustersAreRefused(t *testing.T) {
	set := func(key, value string) func(map[string]string) {
		return func(data map[string]string) { data[key] = value }
	}
	twice := func(data map[string]string) {
		one := strings.TrimSuffix(strings.TrimPrefix(data[clusterkeys.KeysKey], `{"keys":[`), `]}`)
		data[clusterkeys.KeysKey] = `{"keys":[` + one + "," + one + `]}`
	}
	for name, tc := range map[string]struct {
		change func(map[string]string)
		want   string
	}{
		"no name":           {set(clusterkeys.NameKey, ""), `field cluster: "" is no id`},
		"a name with a /":   {set(clusterkeys.NameKey, "a/b"), "field cluster"},
		"the own cluster":   {set(clusterkeys.NameKey, clusterkeys.OwnCluster), "field cluster"},
		"no issuer":         {set(clusterkeys.IssuerKey, ""), "field issuer: is empty"},
		"no keys":           {set(clusterkeys.KeysKey, ""), "field jwks.json: is empty"},
		"an empty set":      {set(clusterkeys.KeysKey, `{"keys":[]}`), "field jwks.json: has no key"},
		"keys cut in half":  {set(clusterkeys.KeysKey, `{"keys":[{"kty"`), "not a JSON Web Key Set"},
		"a secret key":      {set(clusterkeys.KeysKey, `{"keys":[{"kty":"oct","k":"AAAA","kid":"a"}]}`), "not a public key"},
		"a key without kid": {func(d map[string]string) { d["jwks.json"] = strings.ReplaceAll(d["jwks.json"], `"kid"`, `"id"`) }, "has no kid"},
		"a kid twice":       {twice, "two keys have the kid"},
		"no namespace":      {set(clusterkeys.NamespacesKey, " , "), "field namespaces: names no namespace"},
		"a pattern":         {set(clusterkeys.NamespacesKey, "shop-*"), "patterns are not taken"},
		"no trust domain":   {set(clusterkeys.TrustDomainKey, ""), "field trustDomain: is empty"},
		"a bad domain":      {set(clusterkeys.TrustDomainKey, "spiffe://a"), "field trustDomain"},
		"a misspelt field":  {set("namespace", "shop"), `field "namespace" is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			data := east(t)
			tc.change(data)
			if c, err := clusterkeys.Parse(data); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %+v, %v; want an error with %q", c, err, tc.want)
			}
		})
	}
}

func TestBrokenDocumentsAreRefused(t *testing.T) {
	c := testkit.Must(clusterkeys.Parse(east(t)))(t)
	twice := string(testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{c, c}))(t))
	one := string(testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{c}))(t))
	for text, want := range map[string]string{
		"": "not a JSON object", "[]": "not a JSON object", one[:len(one)/2]: "not a JSON object", twice: "there twice",
		strings.Replace(one, `"issuer"`, `"issuers"`, 1): "not a JSON object", `{"clusters":[{"cluster":"a"}]}`: "clusters[0]",
	} {
		if _, err := clusterkeys.Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want an error with %q", text, err, want)
		}
	}
	if got := testkit.Must(clusterkeys.Read(testkit.Must(clusterkeys.Write(nil))(t)))(t); len(got) != 0 {
		t.Errorf("got %v of no clusters", got)
	}
}

// Whatever a document says, reading it does not panic, and what is read can be written and read again.
func FuzzRead(f *testing.F) {
	c := testkit.Must(clusterkeys.Parse(east(f)))(f)
	f.Add(testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{c}))(f))
	f.Fuzz(func(t *testing.T, raw []byte) {
		clusters, err := clusterkeys.Read(raw)
		if err != nil {
			return
		}
		again, err := clusterkeys.Read(testkit.Must(clusterkeys.Write(clusters))(t))
		if err != nil || len(again) != len(clusters) {
			t.Errorf("%d clusters become %d: %v", len(clusters), len(again), err)
		}
	})
}

func TestSharedKeysAreFound(t *testing.T) {
	a := testkit.Must(clusterkeys.Parse(east(t)))(t)
	b := a
	b.Name, b.Keys = "mid", json.RawMessage(strings.ReplaceAll(string(a.Keys), `"key-1"`, `"renamed"`))
	own := testkit.Must(clusterkeys.PublicKeys(a.Keys))(t)
	shared := testkit.Must(clusterkeys.Shared(own, []clusterkeys.Cluster{b}))(t)
	sum := testkit.Must(clusterkeys.Fingerprint(own[0]))(t)
	if !slices.Equal(shared[sum], []string{clusterkeys.OwnCluster, "mid"}) || len(shared) != 1 {
		t.Errorf("got %v", shared)
	}
	if shared := testkit.Must(clusterkeys.Shared(nil, []clusterkeys.Cluster{a}))(t); len(shared) != 0 {
		t.Errorf("got %v", shared)
	}
}
