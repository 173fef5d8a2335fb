package differential_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/proxytest"
)

// TestNamespacesDoNotLeak gives a namespace objects that it exports to nobody, of every kind and with any fields, and its own proxies; and services
// and endpoints of others that are as that namespace alone sees them. What the proxies of others hold, from the same server, must be byte by byte
// what they would hold if the namespace had nothing and saw nothing.
func TestNamespacesDoNotLeak(t *testing.T) {
	const secretive = "y"
	rapid.Check(t, func(rt *rapid.T) {
		all, open := map[string]*configv1.Resource{}, map[string]*configv1.Resource{}
		add := func(r *configv1.Resource) {
			all[r.GetKey().String()] = r
			if r.GetKey().GetNamespace() != secretive {
				open[r.GetKey().String()] = r
			}
		}
		add(settings(rapid.IntRange(0, 1).Draw(rt, "settings")))
		for range rapid.IntRange(5, 25).Draw(rt, "objects") {
			ns := rapid.SampledFrom([]string{"x", "istio-system"}).Draw(rt, "namespace")
			add(object(rt, ns, rapid.SampledFrom(exports).Draw(rt, "exported to")))
			if private := object(rt, secretive, []string{secretive}); private.GetKey().GetNamespace() == secretive {
				add(private)
			}
			if seen := object(rt, ns, []string{secretive}); seen.GetService().GetAudience() == secretive || seen.GetEndpointSet().GetAudience() == secretive {
				all[seen.GetKey().String()] = seen
			}
		}
		server := start(t)
		defer server.Stop()
		server.Apply(slices.Collect(maps.Values(all)), nil)
		want, err := mesh.FromResources(slices.Collect(maps.Values(open)))
		if err != nil {
			rt.Fatal(err)
		}
		// The secretive namespace's proxies come first: what is built for them is there when the others ask.
		for _, p := range observers() {
			p.Connect(t, server.Conn)
			defer p.Disconnect()
			state := want
			if strings.HasSuffix(p.Node.GetId(), "~"+secretive+".svc.cluster.local") {
				state = server.Snapshot
			}
			agree(rt, []*proxytest.Proxy{p}, state)
		}
	})
}

// observers are proxies of a namespace with secrets, then of others, in either protocol.
func observers() []*proxytest.Proxy {
	var all []*proxytest.Proxy
	for _, ns := range []string{"y", "x", "elsewhere", "istio-system"} {
		for i, delta := range []bool{true, false} {
			all = append(all, proxytest.New(proxytest.Config{
				Delta: delta, Node: node("sidecar", "w", ns, fmt.Sprintf("10.0.9.%d", i+1), nil), Agent: true, Children: children,
			}))
		}
		all = append(all, proxytest.New(proxytest.Config{
			Delta: true, Node: node("sidecar", "lean", ns, "10.0.9.3", map[string]any{class.OnDemandMetadata: "true"}), Agent: true, Children: children,
		}))
	}
	return all
}
