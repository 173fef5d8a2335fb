package networking

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// ZoneAware checks zone-aware load balancing, which has no effect yet. Envoy itself orders regions, zones and subzones
// there, so failoverPriority may name only other labels.
func (c Checker) ZoneAware(at string, z *networking.ZoneAwareLoadBalancerSetting) {
	for i, p := range z.GetFailoverPriority() {
		c.FailIf(slices.Contains(topologyLabels, p), manifest.Index(at+".failoverPriority", i), p, "places are ordered without it", "remove it")
	}
	for at, f := range manifest.Items(at+".failover", z.GetFailover()) {
		c.FailIf(strings.ContainsAny(f.From+f.To, "*/"), at, f.From+" to "+f.To, "not regions",
			"failover is between whole regions: remove zone and wildcard")
		c.FailIf(f.From == f.To, at, f.From, "fails over to itself", "name another region in to")
	}
}
