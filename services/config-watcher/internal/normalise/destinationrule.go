package normalise

import (
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

var destinationRuleKind = &rules[object.Object]{
	index: (*Mesh).indexNodeRule,
	build: istioConfig(func(m *Mesh, o *object.Object, s *networking.DestinationRule) (*networking.DestinationRule, []string) {
		out := proto.CloneOf(s)
		out.Host = Host(s.Host, m.namespaceOf(o), m.cfg.Domain)
		return out, m.exportedTo(o)
	}),
}

// indexNodeRule updates nodeRules, and marks the endpoints of hosts that gain or lose the node label.
func (m *Mesh) indexNodeRule(old, now *object.Object) {
	before, after := m.nodeRuleHost(old), m.nodeRuleHost(now)
	if before == after {
		return
	}
	if before != "" {
		delete(m.nodeRules, old.Key)
	}
	if after != "" {
		m.nodeRules[now.Key] = after
	}
	for h := range m.hosts {
		if covers(before, h.Hostname) || covers(after, h.Hostname) {
			m.dirty.endpoints.Add(h)
		}
	}
}

// nodeRuleHost is the host of a DestinationRule that needs the node label of endpoints; "" for any other.
func (m *Mesh) nodeRuleHost(o *object.Object) string {
	if o == nil {
		return ""
	}
	if rule := o.Body.(*networking.DestinationRule); usesNode(rule) {
		return Host(rule.Host, o.Key.Namespace, m.cfg.Domain)
	}
	return ""
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
