package normalise

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// labelHostname is the node of a workload: among its own labels, and among those of endpoints where clients are asked to mind the node. It is left
// out elsewhere, because every node would make a set of labels of its own.
const labelHostname = corev1.LabelHostname

func nodeLabels(in *instance) map[string]string {
	if in.node == "" {
		return nil
	}
	return map[string]string{labelHostname: in.node}
}

// byNode tells whether the endpoints of a service have to say which node they are on: the Service asks for it, the mesh, or a DestinationRule.
func (m *Mesh) byNode(svc *configv1.Service) bool {
	if svc.NodeLocal || svc.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode || prefersNode(m.settings.GetLocalityLbSetting()) {
		return true
	}
	for _, host := range m.nodeRules {
		if covers(host, svc.Hostname) {
			return true
		}
	}
	return false
}

// touchNodeRule follows a DestinationRule that tests the node of endpoints.
func (m *Mesh) touchNodeRule(k object.Key, o *object.Object) {
	before, now := m.nodeRules[k], ""
	if o != nil {
		if rule, ok := o.Body.(*networking.DestinationRule); ok && testsNode(rule) {
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

// covers tells whether a host, which may be a wildcard or empty, is about a hostname.
func covers(host, hostname string) bool {
	suffix, wildcard := strings.CutPrefix(host, "*")
	return wildcard && strings.HasSuffix(hostname, suffix) || host == hostname
}

// testsNode tells whether a rule orders endpoints, or chooses them for a subset, by their node.
func testsNode(rule *networking.DestinationRule) bool {
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
