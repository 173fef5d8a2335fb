package running

import (
	"slices"
	"strings"
	"testing"
)

// TestServiceRoutesShadowed: a VirtualService of the mesh wins over routes of the Gateway API for the same Service, and
// who has written the route is told.
func TestServiceRoutesShadowed(t *testing.T) {
	route := func(namespace, parents string) string {
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: " + namespace +
			"}, spec: {parentRefs: [" + parents + "], rules: [{}]}}"
	}
	const service = "{kind: Service, group: '', name: reviews}"
	const foreign = "{kind: Service, group: '', name: reviews, namespace: shop}"
	vs := func(more string) string {
		return networkingObject("VirtualService", "shop", "a", "{hosts: [reviews]"+more+", http: [{route: [{destination: {host: reviews}}]}]}")
	}
	shadowed := []string{"RouteShadowed HTTPRoute shop/r spec.parentRefs[0]"}
	for name, tc := range map[string]struct {
		yaml, want []string
	}{
		"of one host": {[]string{vs(""), route("shop", service)}, shadowed},
		"the second parent": {[]string{vs(""), route("shop", "{name: edge}, "+service)},
			[]string{"RouteShadowed HTTPRoute shop/r spec.parentRefs[1]"}},
		"of a gateway alone":              {[]string{vs(", gateways: [edge/front]"), route("shop", service)}, nil},
		"without a VirtualService":        {[]string{route("shop", service)}, nil},
		"a Gateway of the Service's name": {[]string{vs(""), route("shop", "{name: reviews}")}, nil},
		"for the clients of a namespace": {[]string{vs(""), route("apps", foreign)},
			[]string{"RouteShadowed HTTPRoute apps/r spec.parentRefs[0]"}},
		"for clients that do not see it":          {[]string{vs(", exportTo: [.]"), route("apps", foreign)}, nil},
		"for all, of whom some see it":            {[]string{vs(", exportTo: [.]"), route("shop", service)}, shadowed},
		"a VirtualService that comes after it is": {[]string{route("shop", service), vs("")}, shadowed},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range newFixture(t, append([]string{base}, tc.yaml...)...).short() {
				if strings.HasPrefix(f, "RouteShadowed") {
					got = append(got, f)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
