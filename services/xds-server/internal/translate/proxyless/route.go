package proxyless

import (
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/route"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

const (
	// grpcMethod is the only method of gRPC requests.
	grpcMethod = "POST"
	// channelID is the hash key that identifies a channel.
	channelID = "io.grpc.channel_id"
	// maxRouteMatches bounds the results of grpcRouteMatches.
	maxRouteMatches = 16
)

// routes builds the route configuration of a gRPC server target. Its virtual host accepts every authority, because the
// channel's listener has chosen the host.
func routes(r *input.Reader, name string) (*routev3.RouteConfiguration, error) {
	c, ok := resourcename.ParseCluster(name)
	if !ok || c.Direction != resourcename.DirectionOutbound || c.Subset != "" {
		return nil, nil
	}
	all, err := route.RoutesToHost(r, c.Hostname, c.Port)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	host := &routev3.VirtualHost{Name: resourcename.HostPort(c.Hostname, c.Port), Domains: []string{"*"}}
	for _, in := range all {
		host.Routes = append(host.Routes, grpcRoutes(in, name)...)
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}, nil
}

// grpcRoutes converts a route to what gRPC supports: no route if no gRPC request can match, several if gRPC needs
// several for the same matches. fallback names the cluster of routes that have none.
func grpcRoutes(in *routev3.Route, fallback string) []*routev3.Route {
	matches := grpcRouteMatches(in.GetMatch())
	if len(matches) == 0 {
		return nil
	}
	action, overrides := in.GetRoute(), map[string]*anypb.Any{}
	if fault, ok := in.GetTypedPerFilterConfig()[hcm.FaultFilter]; ok {
		overrides[hcm.FaultFilter] = fault
	}
	if action == nil {
		// The route redirects or answers directly: a gRPC client can only fail, with the status of that answer.
		action = &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: fallback}}
		overrides[hcm.FaultFilter] = typedconfig.Any(abort(responseStatus(in)))
	}
	if len(overrides) == 0 {
		overrides = nil
	}
	var out []*routev3.Route
	for _, match := range matches {
		out = append(out, &routev3.Route{
			Name: in.GetName(), Match: match, TypedPerFilterConfig: overrides,
			Action: &routev3.Route_Route{Route: grpcRouteAction(action)},
		})
	}
	return out
}

// grpcRouteAction keeps the clusters, the timeout, the retries and the supported hash policies of an action.
func grpcRouteAction(in *routev3.RouteAction) *routev3.RouteAction {
	out := &routev3.RouteAction{}
	if weighted := in.GetWeightedClusters(); weighted != nil {
		clusters := &routev3.WeightedCluster{}
		for _, c := range weighted.GetClusters() {
			clusters.Clusters = append(clusters.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: c.GetName(), Weight: c.GetWeight()})
		}
		out.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: clusters}
	} else {
		out.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: in.GetCluster()}
	}
	if limit := in.GetTimeout(); limit.AsDuration() > 0 {
		// gRPC does not read Timeout.
		out.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: limit}
	}
	if retry := in.GetRetryPolicy(); retry.GetNumRetries().GetValue() > 0 {
		out.RetryPolicy = &routev3.RetryPolicy{RetryOn: retry.GetRetryOn(), NumRetries: retry.GetNumRetries(),
			RetryBackOff: retry.GetRetryBackOff()}
	}
	for _, hash := range in.GetHashPolicy() {
		if p := grpcHashPolicy(hash); p != nil {
			out.HashPolicy = append(out.HashPolicy, p)
		}
	}
	return out
}

// grpcHashPolicy keeps header hashes. A client does not know its source address, so the channel's id replaces it.
func grpcHashPolicy(in *routev3.RouteAction_HashPolicy) *routev3.RouteAction_HashPolicy {
	switch {
	case in.GetHeader() != nil:
		return in
	case in.GetConnectionProperties().GetSourceIp():
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_FilterState_{
			FilterState: &routev3.RouteAction_HashPolicy_FilterState{Key: channelID},
		}}
	default:
		return nil
	}
}

// responseStatus is the HTTP status of a route without a cluster.
func responseStatus(in *routev3.Route) uint32 {
	if direct := in.GetDirectResponse(); direct != nil {
		return direct.GetStatus()
	}
	switch in.GetRedirect().GetResponseCode() {
	case routev3.RedirectAction_FOUND:
		return 302
	case routev3.RedirectAction_SEE_OTHER:
		return 303
	case routev3.RedirectAction_TEMPORARY_REDIRECT:
		return 307
	case routev3.RedirectAction_PERMANENT_REDIRECT:
		return 308
	default:
		return 301
	}
}

func abort(status uint32) *faultv3.HTTPFault {
	return &faultv3.HTTPFault{Abort: &faultv3.FaultAbort{
		ErrorType:  &faultv3.FaultAbort_HttpStatus{HttpStatus: min(max(status, 200), 599)},
		Percentage: &typev3.FractionalPercent{Numerator: 100, Denominator: typev3.FractionalPercent_HUNDRED},
	}}
}

// grpcRouteMatches returns route matches that together match the same gRPC requests as the given one. gRPC requests
// have no query parameters and one method. In gRPC a missing header never matches an inverted value, so "not this
// value" needs another match for requests without the header.
func grpcRouteMatches(in *routev3.RouteMatch) []*routev3.RouteMatch {
	if len(in.GetQueryParameters()) > 0 {
		return nil
	}
	base := proto.Clone(in).(*routev3.RouteMatch)
	base.Headers = nil
	out := []*routev3.RouteMatch{base}
	for _, header := range in.GetHeaders() {
		if header.GetName() == ":method" {
			if matches(header.GetStringMatch(), grpcMethod) == header.GetInvertMatch() && header.GetStringMatch() != nil {
				return nil
			}
			continue
		}
		missing := header.GetInvertMatch() && header.GetTreatMissingHeaderAsEmpty()
		value := proto.Clone(header).(*routev3.HeaderMatcher)
		value.TreatMissingHeaderAsEmpty = false
		with := value
		for _, m := range out[:len(out):len(out)] {
			if missing && !matches(header.GetStringMatch(), "") && len(out) < maxRouteMatches {
				absent := proto.Clone(m).(*routev3.RouteMatch)
				absent.Headers = append(absent.Headers, &routev3.HeaderMatcher{
					Name: header.GetName(), InvertMatch: true, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
				})
				out = append(out, absent)
			}
			m.Headers = append(m.Headers, with)
		}
	}
	return out
}

// matches evaluates a matcher of the kinds that package matcher builds.
func matches(m *matcherv3.StringMatcher, value string) bool {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return p.Exact == value
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(value, p.Prefix)
	case *matcherv3.StringMatcher_SafeRegex:
		expression, err := regexp.Compile("^(?:" + p.SafeRegex.GetRegex() + ")$")
		return err == nil && expression.MatchString(value)
	default:
		return false
	}
}
