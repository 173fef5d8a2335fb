package ondemand

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// maxChange is how much a proxy may be sent for a change of one VirtualService.
const maxChange = 2 << 10

// TestVirtualHostsAreResources looks at a sidecar that holds everything: its virtual hosts come one by one, so that a
// change is as small as what it changes, and disturbs nobody.
func TestVirtualHostsAreResources(t *testing.T) {
	f := newFixture(t, options{})
	defer f.check()
	held := f.client.Held()
	for i := range numbered {
		if want := fmt.Sprintf("80/%s.apps.svc.cluster.local:80", numberedName(i)); !slices.Contains(held.VirtualHosts, want) {
			t.Errorf("virtual host %q is no resource of its own", want)
		}
	}
	for _, name := range held.Inline {
		if strings.HasPrefix(name, "80/") && strings.Contains(name, ".") {
			t.Errorf("virtual host %q is inline", name)
		}
	}
	whole := f.client.Received()

	keep := httpClient(f.client.Host, routedVIP+":80", true)
	dialled := 0
	dial := keep.Transport.(*http.Transport).DialContext
	keep.Transport.(*http.Transport).DialContext = counting(dial, &dialled)
	ask := func() (answer, error) {
		return callOver(keep, request{address: routedVIP + ":80", authority: "routed"})
	}
	route := func(name string) func() error {
		return func() error {
			a, err := ask()
			if err == nil && a.header.Get("X-Route") != name {
				err = fmt.Errorf("status %d by route %q, want %q", a.status, a.header.Get("X-Route"), name)
			}
			return err
		}
	}
	testkit.Eventually(t, takesEffect, route("first"))
	for i := range 3 {
		before := f.client.Received()
		name := fmt.Sprintf("change-%d", i)
		f.WriteConfig("routes.yaml", routes(50, 50, name))
		testkit.Eventually(t, takesEffect, route(name))
		sent := f.client.Received() - before
		t.Logf("a change of a VirtualService sent %.0f bytes, the whole configuration is %.0f", sent, whole)
		if sent <= 0 || sent > maxChange {
			t.Errorf("a change of a VirtualService sent %.0f bytes, want up to %d", sent, maxChange)
		}
	}
	if dialled != 1 {
		t.Errorf("the client had to connect %d times: changes of routes close connections", dialled)
	}

	f.WriteConfig(later, laterService())
	f.eventually(t, request{address: laterVIP + ":80", authority: "later"}, from("v1", "v2"))
	f.RemoveConfig(later)
	f.eventually(t, request{address: laterVIP + ":80", authority: "later"}, from("outside"))
}
