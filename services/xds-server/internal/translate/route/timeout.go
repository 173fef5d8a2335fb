package route

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// deadlineHeader is the header with the deadline of a gRPC request.
const deadlineHeader = "grpc-timeout"

// withTimeout limits the whole request, retries included. Nil and zero mean no limit, which is Istio's default; then a
// gRPC request ends at the deadline that it states. Envoy ignores Timeout if MaxStreamDuration is set
// (Router::FilterUtility::finalTimeout), so a route with a timeout needs a second route for requests with a deadline:
// deadlineRoute.
func withTimeout(action *routev3.RouteAction, timeout *durationpb.Duration) {
	action.Timeout = timeout
	if timeout == nil {
		action.Timeout = durationpb.New(0)
	}
	if !limits(action.GetTimeout()) {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: durationpb.New(0)}
	}
}

func limits(timeout *durationpb.Duration) bool { return timeout.AsDuration() > 0 }

// deadlineRoute returns the route for gRPC requests that state a deadline, to be inserted before the given route: they
// end at the deadline or at the route's timeout, whichever comes first, or at the timeout if the deadline cannot be
// parsed. It is nil if the given route has no timeout.
func deadlineRoute(beside *routev3.Route) *routev3.Route {
	limit := beside.GetRoute().GetTimeout()
	if !limits(limit) || beside.GetMatch().GetConnectMatcher() != nil {
		return nil
	}
	out := proto.CloneOf(beside)
	out.Match.Grpc = &routev3.RouteMatch_GrpcRouteMatchOptions{}
	out.Match.Headers = append(out.Match.Headers, &routev3.HeaderMatcher{
		Name: deadlineHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	})
	out.GetRoute().MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: limit, GrpcTimeoutHeaderMax: limit}
	return out
}

// isDeadlineRoute reports whether deadlineRoute returned the route: no other route matches gRPC requests only.
func isDeadlineRoute(r *routev3.Route) bool {
	return r.GetMatch().GetGrpc() != nil && slices.ContainsFunc(r.GetMatch().GetHeaders(), func(h *routev3.HeaderMatcher) bool {
		return h.GetName() == deadlineHeader
	})
}

// WithoutDeadlines removes the routes of deadlineRoute and the MaxStreamDurations of withTimeout, so that an
// EnvoyFilter finds one route for each route of a VirtualService, and can change its timeout. Package patch calls it
// before it applies EnvoyFilters, and done afterwards: done adds them again, for the timeouts that the routes have
// then. It leaves alone routes that EnvoyFilters have added, or to which they have given a MaxStreamDuration.
func WithoutDeadlines(hosts []*routev3.VirtualHost) (done func(hosts []*routev3.VirtualHost)) {
	built := map[*routev3.Route]bool{}
	for _, h := range hosts {
		h.Routes = slices.DeleteFunc(h.GetRoutes(), isDeadlineRoute)
		for _, r := range h.GetRoutes() {
			if action := r.GetRoute(); action != nil {
				action.MaxStreamDuration = nil
				built[r] = true
			}
		}
	}
	return func(hosts []*routev3.VirtualHost) {
		for _, h := range hosts {
			var all []*routev3.Route
			for _, r := range h.GetRoutes() {
				action := r.GetRoute()
				said := action.GetMaxStreamDuration() != nil || action.GetMaxGrpcTimeout() != nil //nolint:staticcheck // an EnvoyFilter may say it
				if built[r] && action != nil && !said {
					withTimeout(action, action.GetTimeout())
					if deadline := deadlineRoute(r); deadline != nil {
						all = append(all, deadline)
					}
				}
				all = append(all, r)
			}
			h.Routes = all
		}
	}
}
