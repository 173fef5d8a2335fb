package validate

import (
	"strconv"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkPeerAuthentication follows https://istio.io/latest/docs/reference/config/security/peer_authentication/.
func checkPeerAuthentication(c *checker, _ *object.Object, pa *security.PeerAuthentication) {
	c.workloadLabels("spec.selector.matchLabels", pa.Selector.GetMatchLabels())
	if len(pa.PortLevelMtls) > 0 && len(pa.Selector.GetMatchLabels()) == 0 {
		c.fail("spec.portLevelMtls", nil, "needs a selector: ports mean nothing for a whole namespace", "add selector.matchLabels")
	}
	for port := range pa.PortLevelMtls {
		if port < 1 || port > 65535 {
			c.fail(field("spec.portLevelMtls", strconv.FormatUint(uint64(port), 10)), port, "not a port", "use 1 to 65535")
		}
	}
}

// checkWasmPlugin refuses plug-ins that may decide about access; the others would only be missing.
func checkWasmPlugin(c *checker, o *object.Object, w *extensions.WasmPlugin) {
	if w.Url == "" {
		c.fail("spec.url", nil, "missing", "say where the module is")
	}
	if w.Phase == extensions.PluginPhase_AUTHN || w.Phase == extensions.PluginPhase_AUTHZ {
		refuseUnenforced[*extensions.WasmPlugin]("access would not be restricted")(c, o, w)
	}
}

func checkWorkloadGroup(c *checker, _ *object.Object, wg *networking.WorkloadGroup) {
	if wg.Template == nil {
		c.fail("spec.template", nil, "missing", "describe the workloads")
		return
	}
	if wg.Template.Address != "" {
		c.fail("spec.template.address", wg.Template.Address, "a template has no address", "remove it; every workload registers its own")
	}
	if wg.Template.Weight == 0 && wg.Template.ServiceAccount == "" && len(wg.Template.Labels) == 0 && len(wg.Template.Ports) == 0 && wg.Metadata == nil {
		c.fail("spec.template", nil, "describes nothing", "set ports, labels or serviceAccount")
	}
	c.labels("spec.metadata.labels", wg.Metadata.GetLabels())
}
