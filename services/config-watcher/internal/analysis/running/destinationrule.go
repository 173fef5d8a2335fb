package running

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkRuleHost finds DestinationRules for a host that no service has. It skips wildcard hosts, which may cover later
// services.
func checkRuleHost(r *reader) {
	rule := r.object.Body.(*networking.DestinationRule)
	if host := r.host(rule.GetHost()); !strings.HasPrefix(host, "*") && len(r.services(host)) == 0 {
		r.noHost(finding.RuleHostNotFound, "spec.host", rule.GetHost(), host)
	}
}

// checkRuleShadowed finds parts of a DestinationRule that have no effect because of older ones of the namespace for the
// same host, which are merged with it.
func checkRuleShadowed(r *reader) {
	rule := r.object.Body.(*networking.DestinationRule)
	host := r.host(rule.GetHost())
	exported, selector := r.exported(r.object), object.LabelText(rule.GetWorkloadSelector().GetMatchLabels())
	var older []*object.Object
	rules := r.rules(host)
	for _, o := range rules[:min(len(rules), maxScanned)] {
		if o.Key == r.object.Key || len(older) == maxOlder {
			break
		}
		other := o.Body.(*networking.DestinationRule)
		if o.Key.Namespace == r.namespace() && object.LabelText(other.GetWorkloadSelector().GetMatchLabels()) == selector &&
			within(exported, r.exported(o)) {
			older = append(older, o)
		}
	}
	if rule.GetTrafficPolicy() != nil {
		for _, o := range older {
			if decides := o.Body.(*networking.DestinationRule).GetTrafficPolicy(); decides != nil {
				if !proto.Equal(decides, rule.GetTrafficPolicy()) {
					r.ruleShadowed("spec.trafficPolicy", nil, o, host, "trafficPolicy")
				}
				break
			}
		}
	}
	for i, s := range rule.GetSubsets() {
		for _, o := range older {
			if r.effort += len(o.Body.(*networking.DestinationRule).GetSubsets()); r.effort > maxEffort {
				return
			}
			if same := subsetOf(o.Body.(*networking.DestinationRule), s.GetName()); same != nil {
				if !proto.Equal(same, s) {
					r.ruleShadowed(fmt.Sprintf("spec.subsets[%d]", i), s.GetName(), o, host, "subset of this name")
				}
				break
			}
		}
	}
}

func (r *reader) ruleShadowed(field string, value any, older *object.Object, host, what string) {
	r.report(finding.RuleShadowed, field, value, fmt.Sprintf("has no effect: DestinationRule %s/%s for host %s %s, and its %s counts",
		older.Key.Namespace, older.Key.Name, host, object.Precedence(older, r.object), what),
		"join the rules in one object")
}

func subsetOf(rule *networking.DestinationRule, name string) *networking.Subset {
	for _, s := range rule.GetSubsets() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}
