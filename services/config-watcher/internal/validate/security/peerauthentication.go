package security

import (
	"maps"
	"slices"
	"strconv"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// peerAuthentication follows https://istio.io/latest/docs/reference/config/security/peer_authentication/.
func (c checker) peerAuthentication(pa *security.PeerAuthentication) {
	c.Selector("spec.selector.matchLabels", pa.Selector != nil, pa.Selector.GetMatchLabels())
	c.FailIf(pa.PortLevelMtls != nil && len(pa.PortLevelMtls) == 0, "spec.portLevelMtls", nil, "names no port",
		"name one, or remove portLevelMtls")
	if len(pa.PortLevelMtls) > 0 && len(pa.Selector.GetMatchLabels()) == 0 {
		c.Fail("spec.portLevelMtls", nil, "needs a selector: ports mean nothing for a whole namespace", "add selector.matchLabels")
	}
	for _, port := range slices.Sorted(maps.Keys(pa.PortLevelMtls)) {
		check.Port(c.Verdict, manifest.Field("spec.portLevelMtls", strconv.FormatUint(uint64(port), 10)), port)
	}
}
