package gatewayapi_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/randfill"

	"fairlead.dev/services/config-watcher/internal/object"
)

// TestAnything checks that objects which no API server would take do no harm: whatever is in them, a Gateway and its
// route are served.
func TestAnything(t *testing.T) {
	for seed := range int64(200) {
		fill := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).Funcs(
			// Kinds and groups are mostly right, and names those of few objects, so that objects meet.
			func(k *gatewayv1.Kind, c randfill.Continue) {
				*k = gatewayv1.Kind([]string{"Gateway", "ListenerSet", "Service", "HTTPRoute", "Secret", "ConfigMap", "x"}[c.Intn(7)])
			},
			func(g *gatewayv1.Group, c randfill.Continue) {
				*g = gatewayv1.Group([]string{"", "gateway.networking.k8s.io", "x"}[c.Intn(3)])
			},
			func(n *gatewayv1.ObjectName, c randfill.Continue) {
				*n = gatewayv1.ObjectName([]string{"istio", "web", "odd", ""}[c.Intn(4)])
			},
			func(n *gatewayv1.Namespace, c randfill.Continue) {
				*n = gatewayv1.Namespace([]string{"shop", "odd", ""}[c.Intn(3)])
			},
			func(p *gatewayv1.ProtocolType, c randfill.Continue) {
				*p = gatewayv1.ProtocolType([]string{"HTTP", "HTTPS", "TLS", "TCP", "UDP", ""}[c.Intn(6)])
			},
			func(f *gatewayv1.FromNamespaces, c randfill.Continue) {
				*f = gatewayv1.FromNamespaces([]string{"All", "Same", "Selector", "None", ""}[c.Intn(5)])
			},
		)
		w := newWorld()
		var keys []object.Key
		put := func() {
			for _, kind := range slices.Sorted(maps.Keys(bodies)) {
				for _, ns := range []string{"odd", "shop"} {
					body := bodies[kind]()
					fill.Fill(body)
					o := &object.Object{Key: gatewayKey(kind, ns, "odd"), Body: body}
					switch kind {
					case "GatewayClass", "Namespace":
						o.Key.Namespace = ""
					}
					if kind == "Service" || kind == "Namespace" || kind == "ConfigMap" {
						o.Key.Group = ""
					}
					keys = append(keys, o.Key)
					w.Put(o.Key, o)
				}
			}
		}
		put()
		w.put(t, basic)
		put()
		w.rebuild()
		if got := w.status("HTTPRoute", "shop", "cart"); got != "web: Accepted=True/Accepted ResolvedRefs=False/BackendNotFound\n" {
			t.Errorf("seed %d: the route has the status %s", seed, got)
		}
		if len(w.listeners("web")) != 1 {
			t.Errorf("seed %d: the Gateway is not served: %s", seed, w.status("Gateway", "shop", "web"))
		}
		rand.New(rand.NewPCG(uint64(seed), 0)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] }) //nolint:gosec // a test
		for _, k := range keys {
			w.Put(k, nil)
			w.rebuild()
		}
		if got := fmt.Sprint(len(w.resources), len(w.statuses)); got != "2 2" {
			t.Errorf("seed %d: there remain %v, %v", seed, w.resources, w.statuses)
		}
	}
}
