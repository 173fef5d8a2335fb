package differential_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate"
)

// TestNothingIsListedForHostsThatAreNotReached: the engine plans a class with a Sidecar only from the hosts that
// Reader.Hosts lists. They must be those of the mesh that Reader.Reaches accepts, each once, and no translator may list
// a name for another one.
func TestNothingIsListedForHostsThatAreNotReached(t *testing.T) {
	limited, unreached := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		objects := map[string]*configv1.Resource{}
		for range rapid.IntRange(5, 40).Draw(rt, "objects") {
			r := drawObject(rt, rapid.SampledFrom(namespaces).Draw(rt, "namespace"), rapid.SampledFrom(exports).Draw(rt, "exported to"))
			objects[r.GetKey().String()] = r
		}
		state, err := mesh.FromResources(slices.Collect(maps.Values(objects)))
		if err != nil {
			rt.Fatal(err)
		}
		for _, namespace := range append([]string{"elsewhere"}, namespaces...) {
			key := (&class.Key{
				Type: class.Sidecar, Namespace: namespace, DNSDomain: namespace + ".svc.cluster.local", TrustDomain: "cluster.local",
				Interception: rapid.SampledFrom([]class.Interception{class.Redirect, class.TProxy, class.None}).Draw(rt, "interception"),
				VirtualHosts: true, OnDemand: rapid.IntRange(0, 3).Draw(rt, "on demand") == 0, DNSCapture: rapid.Bool().Draw(rt, "DNS capture"),
			}).WithSidecar(state, map[string]string{"app": "d"})
			view := input.NewView(key, state)
			var listed, reached []string
			view.Reader().Hosts(func(host string) { listed = append(listed, host) })
			state.Hosts(contract.MeshGateway, func(host string) {
				if view.Reader().Reaches(host) {
					reached = append(reached, host)
					return
				}
				unreached++
				for _, tr := range translate.All() {
					if names, err := tr.HostNames(view.Reader(), host); err != nil || len(names) > 0 {
						rt.Errorf("%s of %s with Sidecar %q does not reach %s, but it has the names %q, %v", tr.TypeURL(), namespace, key.Sidecar, host,
							names, err)
					}
				}
			})
			slices.Sort(listed)
			slices.Sort(reached)
			if !slices.Equal(listed, reached) {
				rt.Errorf("%s with Sidecar %q: hosts %q, but it reaches %q", namespace, key.Sidecar, listed, reached)
			}
			if key.Sidecar != "" {
				limited++
			}
		}
	})
	if limited == 0 || unreached == 0 {
		t.Errorf("%d classes had a Sidecar, %d hosts were not reached", limited, unreached)
	}
}
