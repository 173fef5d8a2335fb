package differential_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/proxytest"
)

// TestNamespacesDoNotLeak gives one namespace objects of every kind that it exports to nobody, and services and
// endpoints of others that only this namespace sees. Proxies of other namespaces, at the same server, must hold byte
// for byte what they would hold without all of these.
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
			add(drawObject(rt, ns, rapid.SampledFrom(exports).Draw(rt, "exported to")))
			if private := drawObject(rt, secretive, []string{secretive}); private.GetKey().GetNamespace() == secretive {
				add(private)
			}
			seen := drawObject(rt, ns, []string{secretive})
			if audience := cmp.Or(seen.GetService().GetAudience(), seen.GetEndpointSet().GetAudience()); audience == secretive && !provides(seen) {
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
		// The proxies of that namespace come first, so that its resources are built when the others connect.
		for _, p := range observers() {
			p.Connect(t, server.Conn)
			defer p.Disconnect()
			state := want
			if strings.HasSuffix(p.Node.GetId(), "~"+secretive+".svc.cluster.local") {
				state = server.Snapshot
			}
			waitForAgreement(rt, []*proxytest.Proxy{p}, state)
		}
	})
}

// provides reports whether an object is of a service that MeshConfig names as a provider, which proxies reach whatever
// is exported to them.
func provides(r *configv1.Resource) bool {
	name := r.GetKey().GetNamespace() + "/" + cmp.Or(r.GetService().GetHostname(), r.GetEndpointSet().GetHostname())
	return slices.ContainsFunc(slices.Concat(providers(0), providers(1)), func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool {
		return name == cmp.Or(p.GetEnvoyExtAuthzHttp().GetService(), p.GetEnvoyExtAuthzGrpc().GetService())
	})
}

// observers are proxies of the namespace with private objects, then of others, of both protocol variants.
func observers() []*proxytest.Proxy {
	var all []*proxytest.Proxy
	for _, ns := range []string{"y", "x", "elsewhere", "istio-system"} {
		for i, delta := range []bool{true, false} {
			all = append(all, proxytest.New(proxytest.Config{
				Delta: delta, Node: listing(node("sidecar", "w", ns, fmt.Sprintf("10.0.9.%d", i+1), nil), [][]string{complete, unchained}[i]),
				Agent: true, Children: children, Extensions: extensions,
			}))
		}
		all = append(all, proxytest.New(proxytest.Config{
			Delta: true, Node: listing(node("sidecar", "lean", ns, "10.0.9.3", map[string]any{class.OnDemandMetadata: "true"}), complete),
			Agent: true, Children: children, Extensions: extensions,
		}))
	}
	return all
}
