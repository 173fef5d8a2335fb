package route

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
)

// defaultRoute leads every request to a cluster. It is the route of hosts without a VirtualService.
func defaultRoute(cluster, operation string, retry *routev3.RetryPolicy, hash *routev3.RouteAction_HashPolicy) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		RetryPolicy:      retry,
	}
	withTimeout(action, nil)
	if hash != nil {
		action.HashPolicy = []*routev3.RouteAction_HashPolicy{hash}
	}
	return &routev3.Route{
		Name:      "default",
		Match:     anyPath(),
		Decorator: &routev3.Decorator{Operation: operation},
		Action:    &routev3.Route_Route{Route: action},
	}
}

// passthrough leads requests to an unknown host to the cluster for unknown destinations.
func passthrough(cluster string) *routev3.Route {
	action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}
	withTimeout(action, nil)
	return &routev3.Route{Name: "allow_any", Match: anyPath(), Action: &routev3.Route_Route{Route: action}}
}

// tunnel returns the route for CONNECT beside a route for all other requests, which do not match CONNECT because it has
// no path.
func tunnel(beside *routev3.Route) *routev3.Route {
	out := proto.CloneOf(beside)
	out.Name += "_connect"
	out.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}}
	if action := out.GetRoute(); action != nil {
		action.RetryPolicy = nil
	}
	return out
}

func directResponseRoute(name string, status uint32) *routev3.Route {
	return &routev3.Route{
		Name:   name,
		Match:  anyPath(),
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: status}},
	}
}
