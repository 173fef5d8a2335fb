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
		if slices.Contains(topologyLabels, p) {
			c.fail(index(at+".failoverPriority", i), p, "places are ordered without it", "remove it")
		}
	}
	for i, f := range z.GetFailover() {
		at := index(at+".failover", i)
		if strings.ContainsAny(f.From+f.To, "*/") {
			c.fail(at, f.From+" to "+f.To, "not regions", "failover is between whole regions: remove zone and wildcard")
		}
		if f.From == f.To {
			c.fail(at, f.From, "fails over to itself", "name another region in to")
		}
	}
}
