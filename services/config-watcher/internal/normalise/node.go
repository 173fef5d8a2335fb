package normalise

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// labelHostname names a workload's node. Workloads always have it; endpoints have it only if byNode says so, because
// every node makes a label set of its own.
const labelHostname = corev1.LabelHostname

func nodeLabels(in *instance) map[string]string {
	if in.node == "" {
		return nil
	}
	return map[string]string{labelHostname: in.node}
}

// byNode reports whether the endpoints of a service carry the label of their node. The Service, the mesh or a
// DestinationRule can ask for it.
func (m *Mesh) byNode(svc *configv1.Service) bool {
	if svc.NodeLocal || svc.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode ||
		prefersNode(m.settings.GetLocalityLbSetting()) {
		return true
	}
	for _, host := range m.nodeRules {
		if covers(host, svc.Hostname) {
			return true
		}
	}
	return false
}

// touchNodeRule updates nodeRules with a DestinationRule.
func (m *Mesh) touchNodeRule(k object.Key, o *object.Object) {
	before, now := m.nodeRules[k], ""
	if o != nil {
		if rule, ok := o.Body.(*networking.DestinationRule); ok && usesNode(rule) {
			now = Host(rule.Host, k.Namespace, m.cfg.Domain)
		}
	}
	if before == now {
		return
	}
	if delete(m.nodeRules, k); now != "" {
		m.nodeRules[k] = now
	}
	for h := range m.claims {
		if covers(before, h.hostname) || covers(now, h.hostname) {
			m.dirty.endpoints.add(h)
		}
	}
}

// covers reports whether a host, possibly a wildcard or empty, matches a hostname.
func covers(host, hostname string) bool {
	suffix, wildcard := strings.CutPrefix(host, "*")
	return wildcard && strings.HasSuffix(hostname, suffix) || host == hostname
}

// usesNode reports whether a rule orders endpoints by node, or chooses those of a subset by node.
func usesNode(rule *networking.DestinationRule) bool {
	policies := []*networking.TrafficPolicy{rule.GetTrafficPolicy()}
	for _, s := range rule.GetSubsets() {
		if _, tested := s.GetLabels()[labelHostname]; tested {
			return true
		}
		policies = append(policies, s.GetTrafficPolicy())
	}
	for _, p := range policies {
		if prefersNode(p.GetLoadBalancer().GetLocalityLbSetting()) {
			return true
		}
		for _, port := range p.GetPortLevelSettings() {
			if prefersNode(port.GetLoadBalancer().GetLocalityLbSetting()) {
				return true
			}
		}
	}
	return false
}

func prefersNode(l *networking.LocalityLoadBalancerSetting) bool {
	for _, label := range l.GetFailoverPriority() {
		if key, _, _ := strings.Cut(label, "="); key == labelHostname {
			return true
		}
	}
	return false
}
