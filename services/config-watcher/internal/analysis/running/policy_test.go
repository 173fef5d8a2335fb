package running

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/meshdefaults"
)

// TestProviders: a policy that asks a provider which cannot be asked is found, and the finding goes with the mistake.
func TestProviders(t *testing.T) {
	policy := func(action string) string {
		return "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: x, namespace: shop}, spec: {action: " + action +
			", rules: [{}]}}\n---\n"
	}
	entry := func(namespace, host string) string {
		return "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: two, namespace: " + namespace + "}, spec: {hosts: [" +
			host + "], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}}\n---\n"
	}
	asked := policy("CUSTOM, provider: {name: opa}") + entry("shop", "two.example.com") + entry("bank", "two.example.com") +
		entry("empty", "ratings.bank.svc.cluster.local")
	for name, tc := range map[string]struct{ policy, providers, want string }{
		"no provider":           {asked, `[]`, `"opa": MeshConfig has no such provider`},
		"another action":        {policy("DENY"), `[]`, ""},
		"another kind":          {asked, `[{"name": "opa", "zipkin": {}}]`, `decides about no access`},
		"no service":            {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "opa.shop.svc.cluster.local", "port": 7070}}]`, `is not there`},
		"half a name":           {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "reviews.shop", "port": 7070}}]`, `write its full host`},
		"under a wildcard":      {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "a.wild.example.com", "port": 443}}]`, `is not there`},
		"a service":             {asked, `[{"name": "opa", "envoyExtAuthzHttp": {"service": "reviews.shop.svc.cluster.local", "port": 9080}}]`, ""},
		"no such port":          {asked, `[{"name": "opa", "envoyExtAuthzHttp": {"service": "reviews.shop.svc.cluster.local", "port": 80}}]`, `has no port 80: nobody is asked, and what the rules match is denied`},
		"no such port, open":    {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "reviews.shop.svc.cluster.local", "port": 80, "failOpen": true}}]`, `let through, as its failOpen says`},
		"with namespace":        {asked, `[{"name": "opa", "envoyExtAuthzHttp": {"service": "shop/reviews.shop.svc.cluster.local", "port": 9080}}]`, ""},
		"another namespace":     {asked, `[{"name": "opa", "envoyExtAuthzHttp": {"service": "bank/reviews.shop.svc.cluster.local", "port": 9080}}]`, `is not there`},
		"of two namespaces":     {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "two.example.com", "port": 80}}]`, `several namespaces have`},
		"one of two namespaces": {asked, `[{"name": "opa", "envoyExtAuthzGrpc": {"service": "bank/two.example.com", "port": 80}}]`, ""},
		"beside a Service":      {asked, `[{"name": "opa", "envoyExtAuthzHttp": {"service": "ratings.bank.svc.cluster.local", "port": 9080}}]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, base, tc.policy)
			settings := meshdefaults.MeshConfig()
			given := &mesh.MeshConfig{}
			if err := protojson.Unmarshal([]byte(`{"extensionProviders": `+tc.providers+`}`), given); err != nil {
				t.Fatal(err)
			}
			settings.ExtensionProviders = given.ExtensionProviders
			f.Configure(settings)
			f.Analyze(0)
			all := f.All()
			if tc.want == "" && len(all) > 0 || tc.want != "" && (len(all) != 1 || !strings.Contains(all[0].Error(), tc.want)) {
				t.Errorf("findings %v, want %q", all, tc.want)
			}
		})
	}
}
