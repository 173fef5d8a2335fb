package mesh

import (
	"fmt"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const (
	// RulesOfPolicy are the rules that each AuthorizationPolicy has.
	RulesOfPolicy = 10

	policyKind    = "AuthorizationPolicy"
	policyVersion = "security.istio.io/v1"
	rootNamespace = "istio-system"

	// changed is the service whose policy Policy changes.
	changed = 7
)

// policy i selects the Pods of service i.
func (m Spec) policy(i, turn int) *configv1.Resource {
	s := m.service(i)
	return configOf(policyVersion, policyKind, s.namespace(), s.name(), &security.AuthorizationPolicy{
		Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": s.name()}},
		Action:   security.AuthorizationPolicy_ALLOW, Rules: rulesOfPolicy(i, s.namespaces(), turn),
	})
}

// rulesOfPolicy each speak of one caller and a path; turn changes one of the paths.
func rulesOfPolicy(i, namespaces, turn int) (out []*security.Rule) {
	for n := range RulesOfPolicy {
		path := fmt.Sprintf("/api/v1/items-%d/*", n)
		if n == RulesOfPolicy-1 {
			path = fmt.Sprintf("/api/v1/turn-%d/*", turn)
		}
		out = append(out, &security.Rule{
			From: []*security.Rule_From{{Source: &security.Source{
				Principals: []string{fmt.Sprintf("cluster.local/ns/ns-%d/sa/default", (i+n)%namespaces)},
			}}},
			To: []*security.Rule_To{{Operation: &security.Operation{Methods: []string{"GET", "POST"}, Paths: []string{path}}}},
		})
	}
	return out
}

// Policy changes the policy that selects the Pods of one service.
func (m Spec) Policy(turn int) Change {
	return Change{Upserts: []*configv1.Resource{m.policy(changed, turn)}}
}

// Selected is how many sidecars that policy selects.
func (m Spec) Selected() int {
	n := 0
	for i := range m.Sidecars - m.few() {
		n += btoi(i%m.Classes == changed)
	}
	return n
}

// RootPolicy makes or changes a policy that selects all sidecars.
func (m Spec) RootPolicy(turn int) Change {
	return Change{Upserts: []*configv1.Resource{configOf(policyVersion, policyKind, rootNamespace, "all", &security.AuthorizationPolicy{
		Action: security.AuthorizationPolicy_DENY, Rules: rulesOfPolicy(0, m.service(0).namespaces(), turn),
	})}}
}
