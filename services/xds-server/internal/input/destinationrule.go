package input

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/replica"
)

// DestinationRule returns the rule that applies to a hostname for this class, nil if none does. It is looked up in the client's
// namespace, then the service's, then the root namespace, as Istio does; within one an exact host beats a wildcard and a longer wildcard
// a shorter one. Rules of one namespace for one host are merged: the oldest gives the traffic policy, each adds the subsets whose names
// are new. A rule with a workload selector counts only where it selects the class, in its own namespace, and beats one without.
func (r *Reader) DestinationRule(hostname string) *replica.DestinationRule {
	r.record(replica.DestinationRulesTopics(hostname)...)
	client, root := r.client(), r.Mesh().GetRootNamespace()
	var owner string
	if svc := r.Service(hostname); svc != nil {
		owner = svc.GetNamespace()
	}
	// Istio looks into the client's namespace first unless that is the root namespace, whose rules are everybody's defaults.
	order := []string{owner, root}
	if client != root {
		order = []string{client, owner, root}
	}
	for i, ns := range order {
		if ns == "" || slices.Index(order, ns) < i {
			continue
		}
		if rule := r.ruleIn(ns, hostname); rule != nil {
			return rule
		}
	}
	return nil
}

// ruleIn returns the rule of one namespace that applies to the hostname.
func (r *Reader) ruleIn(namespace, hostname string) *replica.DestinationRule {
	for host := range replica.Covering(hostname) {
		var selected, general []*replica.DestinationRule
		for _, rule := range r.view.state.DestinationRules(namespace, host) {
			if !rule.Visible(r.client()) {
				continue
			}
			selector := rule.Spec.GetWorkloadSelector().GetMatchLabels()
			switch {
			case len(selector) == 0:
				general = append(general, rule)
			case namespace == r.client() && r.Class().Type == class.Sidecar && replica.Matches(selector, r.Labels()):
				selected = append(selected, rule)
			}
		}
		if len(selected) > 0 {
			general = selected
		}
		if len(general) > 0 {
			traceAll(r.trace, general)
			return mergeRules(general)
		}
	}
	return nil
}

// mergeRules joins rules for one host, oldest first.
func mergeRules(rules []*replica.DestinationRule) *replica.DestinationRule {
	if len(rules) == 1 {
		return rules[0]
	}
	merged := *rules[0]
	spec := proto.Clone(merged.Spec).(*networking.DestinationRule)
	names := map[string]bool{}
	for _, s := range spec.GetSubsets() {
		names[s.GetName()] = true
	}
	for _, rule := range rules[1:] {
		for _, s := range rule.Spec.GetSubsets() {
			if !names[s.GetName()] {
				names[s.GetName()] = true
				spec.Subsets = append(spec.Subsets, s)
			}
		}
		if spec.TrafficPolicy == nil {
			spec.TrafficPolicy = rule.Spec.GetTrafficPolicy()
		}
	}
	merged.Spec = spec
	return &merged
}
