package versions

import (
	"bytes"
	"testing"

	"fairlead.dev/pkg/version"
)

func TestVersionsOfProxiesAreCounted(t *testing.T) {
	m := Mesh{
		Client: version.Build{Version: "1.3.0", Revision: "abc", Go: "go1.26.0"},
		Services: []Replica{{Program: "ca", Revision: "default", Info: &version.Build{Version: "1.2.0", Go: "go1.26.0"}},
			{Program: "xds-server", Revision: "default", Info: &version.Build{Version: "1.2.0", Go: "go1.26.0"}}},
		Proxies: []Proxy{
			{"a.shop", "1.3.0", "1.40.0", "canary"}, {"b.shop", "1.2.0", "1.40.0", "default"}, {"c.shop", "1.3.0", "1.40.0", "canary"},
			{ID: "d.shop", Version: "unknown"},
		},
		Unknown: []string{"versions of some proxies: config-watcher-2:\n no answer"},
	}
	var out bytes.Buffer
	if err := m.Print(&out, true); err != nil {
		t.Fatal(err)
	}
	if want := `client version: 1.3.0
control plane version: 1.2.0
data plane version: 1.2.0 (1 proxies), 1.3.0 (2 proxies), unknown (1 proxies)
data plane revision: canary (2 proxies), default (1 proxies), none (1 proxies)
unknown: versions of some proxies: config-watcher-2: no answer
`; out.String() != want {
		t.Errorf("%s", out.String())
	}
}
