package route

import (
	"regexp"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
)

// RoutesToHost returns the routes of requests from a workload of the mesh to a port of a host: those of its
// VirtualServices, those of the Gateway API that are attached to its service, or the default route to the cluster of
// its service. It is nil if there are none. Package proxyless calls it; gRPC clients enforce deadlines themselves, so
// the result has no routes for deadlines, and they know no path_separated_prefix, so that is a regular expression.
func RoutesToHost(r *input.Reader, hostname string, port uint32) ([]*routev3.Route, error) {
	routes, err := routesToHost(r, hostname, port)
	routes = slices.DeleteFunc(slices.Clone(routes), isDeadlineRoute)
	for _, route := range routes {
		if elements := route.GetMatch().GetPathSeparatedPrefix(); elements != "" {
			route.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{
				SafeRegex: &matcherv3.RegexMatcher{Regex: regexp.QuoteMeta(elements) + "(/.*)?"},
			}
		}
	}
	return routes, err
}

func routesToHost(r *input.Reader, hostname string, port uint32) ([]*routev3.Route, error) {
	b := newBuilder(r, port, contract.MeshGateway)
	b.withoutRewrites = true
	svc := r.FollowExternalName(hostname)
	if spec := discovery.Port(svc, port); spec != nil {
		host, err := b.service(r, svc, spec)
		return host.GetRoutes(), err
	}
	if svc != nil {
		return nil, nil
	}
	for _, vs := range r.VirtualServicesOf(contract.MeshGateway, hostname) {
		if !namesHost(r, vs, hostname) {
			continue
		}
		if routes, err := b.virtualService(vs); err != nil || len(routes) > 0 {
			r.Uses(vs)
			return routes, err
		}
	}
	return nil, nil
}

// namesHost reports whether a VirtualService routes a host that has no service. A wildcard host that covers services
// does not count: each of these has routes of its own.
func namesHost(r *input.Reader, vs *mesh.VirtualService, hostname string) bool {
	for host := range mesh.Covering(hostname) {
		if host == "*" || !slices.Contains(vs.Spec.GetHosts(), host) {
			continue
		}
		if host == hostname || !r.AnyUnder(host) {
			return true
		}
	}
	return false
}
