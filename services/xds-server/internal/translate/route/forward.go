package route

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/translate/match"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/policy"
)

func (b *builder) forward(out *routev3.Route, in *networking.HTTPRoute, authority string) (*routev3.RouteAction, error) {
	action := &routev3.RouteAction{}
	withTimeout(action, in.GetTimeout())
	if err := rewrite(action, in.GetRewrite()); err != nil {
		return nil, fmt.Errorf("rewrite.%w", err)
	}
	if in.GetRewrite().GetAuthority() != "" {
		authority = in.GetRewrite().GetAuthority()
	}
	if authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	b.mirrors(action, in)
	if err := b.destinations(out, action, in); err != nil {
		return nil, err
	}
	retry := in.GetRetries()
	if retry == nil {
		retry = b.mesh.GetDefaultHttpRetryPolicy()
	}
	action.RetryPolicy = retries(retry, len(action.GetHashPolicy()) > 0)
	return action, nil
}

func rewrite(action *routev3.RouteAction, in *networking.HTTPRewrite) error {
	if regex := in.GetUriRegexRewrite(); regex != nil {
		pattern, err := match.Regex(regex.GetMatch())
		if err != nil {
			return fmt.Errorf("uriRegexRewrite.match: %w", err)
		}
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: pattern, Substitution: regex.GetRewrite()}
		return nil
	}
	action.PrefixRewrite = in.GetUri()
	return nil
}

func (b *builder) mirrors(action *routev3.RouteAction, in *networking.HTTPRoute) {
	add := func(to *networking.Destination, share float64) {
		if to == nil || share <= 0 {
			return
		}
		action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster:         b.cluster(to),
			RuntimeFraction: fraction(percent(share)),
			TraceSampled:    wrapperspb.Bool(false),
		})
	}
	share := 100.0
	if in.GetMirrorPercentage() != nil {
		share = in.GetMirrorPercentage().GetValue()
	} else if p := in.GetMirrorPercent(); p != nil { //nolint:staticcheck // deprecated in Istio, still accepted
		share = float64(p.GetValue())
	}
	add(in.GetMirror(), share)
	for _, mirror := range in.GetMirrors() {
		share := 100.0
		if mirror.GetPercentage() != nil {
			share = mirror.GetPercentage().GetValue()
		}
		add(mirror.GetDestination(), share)
	}
}

// destinations sets where the request goes: one cluster, or several by weight. Weight 0 beside others means never.
func (b *builder) destinations(out *routev3.Route, action *routev3.RouteAction, in *networking.HTTPRoute) error {
	if len(in.GetRoute()) == 1 {
		only := in.GetRoute()[0]
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: b.cluster(only.GetDestination())}
		operations, err := headers(only.GetHeaders())
		if err != nil {
			return fmt.Errorf("route[0].%w", err)
		}
		out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, operations.requestAdd...)
		out.RequestHeadersToRemove = append(out.RequestHeadersToRemove, operations.requestRemove...)
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, operations.responseAdd...)
		out.ResponseHeadersToRemove = append(out.ResponseHeadersToRemove, operations.responseRemove...)
		if operations.authority != "" && action.GetHostRewriteSpecifier() == nil {
			action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: operations.authority}
		}
		b.hash(action, only.GetDestination())
		return nil
	}
	weighted := &routev3.WeightedCluster{}
	for i, to := range in.GetRoute() {
		if to.GetWeight() == 0 {
			continue
		}
		operations, err := headers(to.GetHeaders())
		if err != nil {
			return fmt.Errorf("route[%d].%w", i, err)
		}
		weight := &routev3.WeightedCluster_ClusterWeight{
			Name:                    b.cluster(to.GetDestination()),
			Weight:                  wrapperspb.UInt32(uint32(to.GetWeight())), //nolint:gosec // refused by validation if negative
			RequestHeadersToAdd:     operations.requestAdd,
			RequestHeadersToRemove:  operations.requestRemove,
			ResponseHeadersToAdd:    operations.responseAdd,
			ResponseHeadersToRemove: operations.responseRemove,
		}
		if operations.authority != "" {
			weight.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: operations.authority}
		}
		weighted.Clusters = append(weighted.Clusters, weight)
		b.hash(action, to.GetDestination())
	}
	if len(weighted.GetClusters()) == 0 {
		return fmt.Errorf("route: no destination has a weight above 0")
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	return nil
}

// cluster names the cluster of a destination.
func (b *builder) cluster(to *networking.Destination) string {
	return names.Outbound(b.destinationPort(to), to.GetSubset(), ConcreteHost(b.reader, to))
}

// ConcreteHost is the host of a destination, or what it is an ExternalName of.
func ConcreteHost(r interface {
	Concrete(hostname string) *configv1.Service
}, to *networking.Destination) string {
	if svc := r.Concrete(to.GetHost()); svc != nil {
		return svc.GetHostname()
	}
	return to.GetHost()
}

// destinationPort is the destination's own, or the only one of its service, or the one the client addressed.
func (b *builder) destinationPort(to *networking.Destination) uint32 {
	if number := to.GetPort().GetNumber(); number != 0 {
		return number
	}
	if ports := b.reader.Concrete(to.GetHost()).GetPorts(); len(ports) == 1 {
		return ports[0].GetNumber()
	}
	return b.port
}

func (b *builder) hash(action *routev3.RouteAction, to *networking.Destination) {
	applied := &networking.TrafficPolicy{}
	if rule := b.reader.DestinationRule(ConcreteHost(b.reader, to)); rule != nil {
		applied = policy.For(rule.Spec, policy.Subset(rule.Spec, to.GetSubset()), b.destinationPort(to))
	}
	applied = policy.WithAffinity(applied, b.reader.Concrete(to.GetHost()))
	if p := hashPolicy(policy.ConsistentHash(applied)); p != nil {
		action.HashPolicy = append(action.HashPolicy, p)
	}
}

// hashPolicy says which part of a request decides the host of a ring hash or Maglev cluster.
func hashPolicy(in *networking.LoadBalancerSettings_ConsistentHashLB) *routev3.RouteAction_HashPolicy {
	switch key := in.GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key.HttpHeaderName},
		}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{
			Name: key.HttpCookie.GetName(), Path: key.HttpCookie.GetPath(), Ttl: key.HttpCookie.GetTtl(),
		}
		for _, attribute := range key.HttpCookie.GetAttributes() {
			cookie.Attributes = append(cookie.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{
				Name: attribute.GetName(), Value: attribute.GetValue(),
			})
		}
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: key.UseSourceIp},
		}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: key.HttpQueryParameterName},
		}}
	default:
		return nil
	}
}

// plain is the route of a host without a VirtualService: everything goes to the cluster.
func plain(cluster, operation string, retry *routev3.RetryPolicy, hash *routev3.RouteAction_HashPolicy) *routev3.Route {
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

// passthrough sends to where the client wanted to connect, or to the proxy that takes what is for nobody.
func passthrough(cluster string) *routev3.Route {
	action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}
	withTimeout(action, nil)
	return &routev3.Route{Name: "allow_any", Match: anyPath(), Action: &routev3.Route_Route{Route: action}}
}

// tunnel is a route for CONNECT, which names no path, beside one for everything else: the request is passed on as it is.
func tunnel(beside *routev3.Route) *routev3.Route {
	out := proto.CloneOf(beside)
	out.Name += "_connect"
	out.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}}
	out.GetRoute().RetryPolicy = nil
	return out
}

func reject(name string, status uint32) *routev3.Route {
	return &routev3.Route{
		Name:   name,
		Match:  anyPath(),
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: status}},
	}
}
