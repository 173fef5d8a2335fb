package route

import (
	"cmp"
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
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
	retry := cmp.Or(in.GetRetries(), b.mesh.GetDefaultHttpRetryPolicy())
	action.RetryPolicy = retryPolicy(retry, len(action.GetHashPolicy()) > 0)
	return action, nil
}

func rewrite(action *routev3.RouteAction, in *networking.HTTPRewrite) error {
	if regex := in.GetUriRegexRewrite(); regex != nil {
		pattern, err := matcher.Regex(regex.GetMatch())
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
			RuntimeFraction: runtimeFraction(percent(share)),
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

// destinations sets the cluster of the action, or the weighted clusters. A destination of weight 0 beside others gets
// no requests.
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

func (b *builder) cluster(to *networking.Destination) string {
	if to.GetHost() == contract.UnresolvedBackend {
		return resourcename.UnresolvedCluster
	}
	return resourcename.OutboundCluster(b.destinationPort(to), to.GetSubset(), DestinationHost(b.reader, to))
}

// DestinationHost returns the host of a destination, or the host that its ExternalName refers to.
func DestinationHost(r interface {
	FollowExternalName(hostname string) *configv1.Service
}, to *networking.Destination) string {
	if svc := r.FollowExternalName(to.GetHost()); svc != nil {
		return svc.GetHostname()
	}
	return to.GetHost()
}

// destinationPort is the port of the destination, or the only port of its service, or the port that the client
// addressed.
func (b *builder) destinationPort(to *networking.Destination) uint32 {
	if number := to.GetPort().GetNumber(); number != 0 {
		return number
	}
	if ports := b.reader.FollowExternalName(to.GetHost()).GetPorts(); len(ports) == 1 {
		return ports[0].GetNumber()
	}
	return b.port
}
