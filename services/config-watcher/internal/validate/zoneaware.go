package validate

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// zoneAware checks zone-aware load balancing, which has no effect yet. Envoy itself orders regions, zones and subzones
// there, so failoverPriority may name only other labels.
func (c *checker) zoneAware(at string, z *networking.ZoneAwareLoadBalancerSetting) {
	for i, p := range z.GetFailoverPriority() {
		c.failIf(slices.Contains(topologyLabels, p), index(at+".failoverPriority", i), p, "places are ordered without it", "remove it")
	}
	for at, f := range each(at+".failover", z.GetFailover()) {
		c.failIf(strings.ContainsAny(f.From+f.To, "*/"), at, f.From+" to "+f.To, "not regions",
			"failover is between whole regions: remove zone and wildcard")
		c.failIf(f.From == f.To, at, f.From, "fails over to itself", "name another region in to")
	}
}
