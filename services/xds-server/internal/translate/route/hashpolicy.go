package route

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

// hash adds the hash policy of a destination whose traffic policy has a consistent hash.
func (b *builder) hash(action *routev3.RouteAction, to *networking.Destination) {
	applied := &networking.TrafficPolicy{}
	if rule := b.reader.DestinationRule(DestinationHost(b.reader, to)); rule != nil {
		applied = trafficpolicy.For(rule.Spec, trafficpolicy.Subset(rule.Spec, to.GetSubset()), b.destinationPort(to))
	}
	applied = trafficpolicy.WithAffinity(applied, b.reader.FollowExternalName(to.GetHost()))
	if p := hashPolicy(trafficpolicy.ConsistentHash(applied)); p != nil {
		action.HashPolicy = append(action.HashPolicy, p)
	}
}

// hashPolicy turns a consistent hash into the request's part that a ring hash or Maglev cluster hashes; nil for none.
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
