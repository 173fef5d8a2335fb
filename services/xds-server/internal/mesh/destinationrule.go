package mesh

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (w *writer) indexDestinationRule(v *DestinationRule, add bool) {
	host := v.Spec.GetHost()
	put(w, &w.next.destinationRules, add, join(v.Key.Namespace, host, age(v.Created), v.Key.Name), v)
	w.touch(SubjectDestinationRule, wildcardOr(host), "")
	w.countRelevantLabels(v.Key.Namespace, v.Spec.GetWorkloadSelector().GetMatchLabels(), add)
	for _, policy := range policies(v.Spec) {
		keys := failoverKeys(policy.GetLoadBalancer().GetLocalityLbSetting())
		for _, to := range v.ExportedTo {
			w.countRelevantLabels(to, keys, add)
		}
	}
	w.indexCredentialUses(v, add)
	// Of several rules for one host, those of the client's own namespace come first.
	to := slices.Clone(explicit(v.ExportedTo))
	if !slices.Contains(to, v.Key.Namespace) {
		to = append(to, v.Key.Namespace)
	}
	w.countPrivate(to, add, Topic{SubjectDestinationRule, wildcardOr(host), ""})
}

// policies lists the traffic policies of a rule: its own, those of its subsets, and those of their ports.
func policies(rule *networking.DestinationRule) []*networking.TrafficPolicy {
	found := []*networking.TrafficPolicy{rule.GetTrafficPolicy()}
	for _, subset := range rule.GetSubsets() {
		found = append(found, subset.GetTrafficPolicy())
	}
	for _, policy := range found {
		for _, port := range policy.GetPortLevelSettings() {
			found = append(found, &networking.TrafficPolicy{LoadBalancer: port.GetLoadBalancer(), Tls: port.GetTls()})
		}
	}
	return found
}

// failoverKeys are the label keys by which failoverPriority compares the client with endpoints.
func failoverKeys(setting *networking.LocalityLoadBalancerSetting) map[string]string {
	keys := map[string]string{}
	for _, label := range setting.GetFailoverPriority() {
		key, _, _ := strings.Cut(label, "=")
		keys[key] = ""
	}
	return keys
}

// DestinationRules lists the rules in one namespace whose host is exactly the one given, oldest first, wherever they
// are exported to.
func (s *Snapshot) DestinationRules(namespace, host string) []*DestinationRule {
	return s.destinationRules.list(join(namespace, host) + sep)
}

// DestinationRulesTopics names the answers of all DestinationRules look-ups for a hostname and the wildcards that cover
// it.
func DestinationRulesTopics(hostname string) []Topic {
	return []Topic{{SubjectDestinationRule, wildcardOr(hostname), ""}, {SubjectDestinationRule, "*", ""}}
}
