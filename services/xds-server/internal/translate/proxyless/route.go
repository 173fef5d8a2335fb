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
	// channelID is the hash key that stands for the caller.
	channelID = "io.grpc.channel_id"
	// maxRouteMatches bounds how many routes are made of one, see alternatives.
	maxRouteMatches = 16
)

// routes makes the route configuration of a target. It has one virtual host for every authority: which host a channel calls, its listener has
// decided.
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

// understood returns what gRPC understands of a route: none if no gRPC request can match it, more than one where gRPC needs several to say
// the same. fallback names the cluster of routes that lead nowhere.
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
		// A redirect, or an answer that the proxy gives itself: a gRPC client can only fail with what it would have been answered.
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

// forward keeps of an action the clusters, the time limit, the retries and what is hashed.
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
		out.RetryPolicy = &routev3.RetryPolicy{RetryOn: retry.GetRetryOn(), NumRetries: retry.GetNumRetries(), RetryBackOff: retry.GetRetryBackOff()}
	}
	for _, hash := range in.GetHashPolicy() {
		if p := grpcHashPolicy(hash); p != nil {
			out.HashPolicy = append(out.HashPolicy, p)
		}
	}
	return out
}

// hashed keeps header hashes. The source address, which a client does not know of itself, becomes the channel.
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

// answer is the HTTP status that a route without a cluster answers with.
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

// alternatives returns matches that together match the gRPC requests which the given one does. gRPC has no query parameters and one method;
// and a header that is missing never matches an inverted value there, so that "not this value" takes a match without the header withGRPCClients it.
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

// matches evaluates a matcher of the kinds that package match makes.
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
