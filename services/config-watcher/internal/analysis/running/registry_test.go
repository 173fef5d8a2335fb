package running

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// A host that a registry's service and another object have is the older one's, and the younger one's finding says so.
func TestHostsOfARegistryAreNotShared(t *testing.T) {
	const text = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop, creationTimestamp: "CREATED"}
spec: {hosts: [HOST], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
`
	entry := func(name, host, created string) *object.Object {
		o := decode(t, "", strings.NewReplacer("NAME", name, "HOST", host, "CREATED", created).Replace(text))[0]
		o.Source = "test"
		return o
	}
	registered := entry("reg", "web.service.consul", "2030-01-01T00:00:00Z")
	registered.Registered = &object.Registered{Service: "reg", Aliases: []string{"web.virtual.consul"}}
	for name, tc := range map[string]struct {
		other *object.Object
		want  string // the object with the finding, "" for none
		field string
	}{
		"an older one":           {entry("mine", "web.service.consul", "2029-01-01T00:00:00Z"), "reg", "spec.hosts[0]"},
		"a younger one":          {entry("mine", "web.service.consul", "2031-01-01T00:00:00Z"), "mine", "spec.hosts[0]"},
		"an alias":               {entry("mine", "web.virtual.consul", "2029-01-01T00:00:00Z"), "reg", ""},
		"another host":           {entry("mine", "db.service.consul", "2029-01-01T00:00:00Z"), "", ""},
		"two without a registry": {entry("mine", "web.example.com", "2029-01-01T00:00:00Z"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			third := entry("third", "web.example.com", "2031-01-01T00:00:00Z")
			f.take(normalise.Change{Key: registered.Key, Object: registered}, normalise.Change{Key: tc.other.Key, Object: tc.other},
				normalise.Change{Key: third.Key, Object: third})
			found := ""
			for _, x := range f.All() {
				if x.Code == finding.RegistryHostTaken {
					found += x.Key.Name
					if x.Field != tc.field || x.Remedy == "" {
						t.Errorf("finding %v", x)
					}
				}
			}
			if found != tc.want {
				t.Errorf("finding about %q, want %q", found, tc.want)
			}
		})
	}
}
