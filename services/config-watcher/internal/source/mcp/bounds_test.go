package mcp

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
)

func expecting(names ...string) func(*mcpv1alpha1.Resource, *networking.ServiceEntry) {
	return func(_ *mcpv1alpha1.Resource, s *networking.ServiceEntry) { s.SubjectAltNames = names }
}

// TestNamespacesThatASourceMayFill: objects of others are left out and named, and so are those that expect identities
// of others, wherever in the object they do. What an earlier run has saved of them does not come back.
func TestNamespacesThatASourceMayFill(t *testing.T) {
	dir := t.TempDir()
	p := newPeer(t)
	const rules = "networking.istio.io/v1/DestinationRule"
	rule := func(name, san string) *anypb.Any {
		body, err := anypb.New(&networking.DestinationRule{Host: "a.example.com", Subsets: []*networking.Subset{{Name: "s",
			TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL,
				SubjectAltNames: []string{san}}}}}})
		testkit.NoError(t, err)
		out, err := anypb.New(&mcpv1alpha1.Resource{Metadata: &mcpv1alpha1.Metadata{Name: name}, Body: body})
		testkit.NoError(t, err)
		return out
	}
	tell := func(s *stream) {
		s.tell(entriesV1, serviceEntry("shop/one"), serviceEntry("pay/two"), serviceEntry("istio-system/three"),
			serviceEntry("shop/four", expecting("spiffe://cluster.local/ns/shop/sa/web", "web.example.com")),
			serviceEntry("shop/five", expecting("spiffe://cluster.local/ns/pay/sa/web")), serviceEntry("shop/six", expecting("spiffe://x")))
		s.tell(rules, rule("shop/seven", "spiffe://cluster.local/ns/pay/sa/web"), rule("shop/eight", "spiffe://cluster.local/ns/shop/sa/web"))
		s.rest(entriesV1, rules)
	}
	// Without bounds everything counts.
	c := follow(t, p.address, dir)
	tell(p.next())
	c.has("shop/eight shop/seven istio-system/three:80 pay/two:80 shop/five:80 shop/four:80 shop/one:80 shop/six:80")
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.stop()

	bounded := func(cfg *Config) { cfg.Namespaces = []string{"shop"} }
	c = follow(t, p.address, dir, bounded)
	s := p.next()
	tell(s)
	c.has("shop/eight shop/four:80 shop/one:80")
	text := c.Status().Problems.Error()
	for _, want := range []string{"pay/two: is of a namespace", "1 more", "shop/five: subjectAltNames", "shop/six: subjectAltNames",
		"DestinationRule shop/seven: subjectAltNames", "--config-source-namespaces"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems lack %q: %s", want, text)
		}
	}
	c.stop()

	// The state of a run without bounds is served with them.
	dir = t.TempDir()
	c = follow(t, p.address, dir)
	tell(p.next())
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.stop()
	p.server.Stop()
	c = follow(t, p.address, dir, bounded)
	testkit.Eventually(t, testkit.Patience, func() error {
		c.clock.Advance(saveEvery)
		return errorIf(!c.Status().Settled(), "not settled")
	})
	c.has("shop/eight shop/four:80 shop/one:80")
}
