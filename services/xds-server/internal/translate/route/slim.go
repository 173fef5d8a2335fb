package route

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// slim takes from a virtual host what Envoy need not be told for each route. Envoy makes its whole route table anew for
// each virtual host that VHDS changes, so that a new route waits for all others; the parts that slim takes are most of
// that time. Nothing is taken where EnvoyFilters may patch routes, which merge with what is there.
//
//   - The default retry policy is that of the virtual host. A route with another one, or with none, says so.
//   - The object that a route is from is in its name alone, not in its metadata.
//   - The decorator names spans. It stays where EnvoyFilters patch listeners, as only these can make Envoy trace.
func (c listenerRoutes) slim(b *builder, host *routev3.VirtualHost) {
	if c.arePatched(mesh.PatchedRoutes) {
		return
	}
	shareRetryPolicy(host, retryPolicy(b.mesh.GetDefaultHttpRetryPolicy(), false))
	traced := c.arePatched(mesh.PatchedListeners)
	for _, route := range host.GetRoutes() {
		route.Metadata = nil
		if !traced {
			route.Decorator = nil
		}
	}
}

func (c listenerRoutes) arePatched(resources string) bool {
	return len(c.r.EnvoyFilters(mesh.At(resources, mesh.Gateways))) > 0
}

// shareRetryPolicy makes a policy that routes have that of their virtual host. A route without retries then has
// an empty policy: Envoy would give it that of its virtual host.
func shareRetryPolicy(host *routev3.VirtualHost, policy *routev3.RetryPolicy) {
	var equal []*routev3.RouteAction
	var without []*routev3.RouteAction
	for _, route := range host.GetRoutes() {
		action := route.GetRoute()
		switch {
		case action == nil:
		case action.GetRetryPolicy() == nil:
			without = append(without, action)
		case proto.Equal(action.GetRetryPolicy(), policy):
			equal = append(equal, action)
		}
	}
	if len(equal) == 0 {
		return
	}
	host.RetryPolicy = policy
	for _, action := range equal {
		action.RetryPolicy = nil
	}
	for _, action := range without {
		action.RetryPolicy = &routev3.RetryPolicy{}
	}
}
