package input

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// DestinationRule returns the rule that applies to a hostname for this class, nil if none does. As in Istio, the rules
// of the client's namespace come first, then those of the service's, then those of the root namespace. Within a
// namespace an exact host beats a wildcard, and a longer wildcard a shorter one. Rules of one namespace for one host
// are merged: the oldest gives the traffic policy, and each adds the subsets whose names are new. A rule with a
// workload selector counts only for classes of its own namespace that it selects; it beats rules without one.
func (r *Reader) DestinationRule(hostname string) *mesh.DestinationRule {
	return r.destinationRule(hostname, r.selected)
}

// InboundDestinationRule is DestinationRule for connections that the class accepts. Rules with a workload selector are
// about the calls of the selected workloads, so they do not count.
func (r *Reader) InboundDestinationRule(hostname string) *mesh.DestinationRule {
	return r.destinationRule(hostname, func(*mesh.DestinationRule) bool { return false })
}

func (r *Reader) destinationRule(hostname string, selected func(*mesh.DestinationRule) bool) *mesh.DestinationRule {
	r.record(mesh.DestinationRulesTopics(hostname)...)
	client, root := r.client(), r.Mesh().GetRootNamespace()
	var owner string
	if svc := r.Service(hostname); svc != nil {
		owner = svc.GetNamespace()
	}
	// Istio skips the first step for clients in the root namespace, whose rules are the defaults of all namespaces.
	order := []string{owner, root}
	if client != root {
		order = []string{client, owner, root}
	}
	for i, ns := range order {
		if ns == "" || slices.Index(order, ns) < i {
			continue
		}
		if rule := r.ruleIn(ns, hostname, selected); rule != nil {
			return rule
		}
	}
	return nil
}

// selected reports whether a rule's workload selector selects the class.
func (r *Reader) selected(rule *mesh.DestinationRule) bool {
	return rule.Key.Namespace == r.client() && mesh.Matches(rule.Spec.GetWorkloadSelector().GetMatchLabels(), r.Labels())
}

// ruleIn returns the rule of one namespace that applies to the hostname.
func (r *Reader) ruleIn(namespace, hostname string, selected func(*mesh.DestinationRule) bool) *mesh.DestinationRule {
	for host := range mesh.Covering(hostname) {
		var chosen, general []*mesh.DestinationRule
		for _, rule := range r.view.State().DestinationRules(namespace, host) {
			switch {
			case !rule.Visible(r.client()):
			case len(rule.Spec.GetWorkloadSelector().GetMatchLabels()) == 0:
				general = append(general, rule)
			case selected(rule):
				chosen = append(chosen, rule)
			}
		}
		if len(chosen) > 0 {
			general = chosen
		}
		if len(general) > 0 {
			merged, parts := mergeRules(general)
			traceAll(r.trace, parts)
			return merged
		}
	}
	return nil
}

// mergeRules merges rules for one host, oldest first. It also returns those that contribute to the result.
func mergeRules(rules []*mesh.DestinationRule) (*mesh.DestinationRule, []*mesh.DestinationRule) {
	if len(rules) == 1 {
		return rules[0], rules
	}
	parts := rules[:1:1]
	merged := *rules[0]
	spec := proto.Clone(merged.Spec).(*networking.DestinationRule)
	names := map[string]bool{}
	for _, s := range spec.GetSubsets() {
		names[s.GetName()] = true
	}
	for _, rule := range rules[1:] {
		before, policy := len(spec.GetSubsets()), spec.GetTrafficPolicy()
		for _, s := range rule.Spec.GetSubsets() {
			if !names[s.GetName()] {
				names[s.GetName()] = true
				spec.Subsets = append(spec.Subsets, s)
			}
		}
		if spec.TrafficPolicy == nil {
			spec.TrafficPolicy = rule.Spec.GetTrafficPolicy()
		}
		if len(spec.GetSubsets()) > before || spec.GetTrafficPolicy() != policy {
			parts = append(parts, rule)
		}
	}
	merged.Spec = spec
	return &merged, parts
}
