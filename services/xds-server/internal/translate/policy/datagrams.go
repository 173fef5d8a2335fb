package policy

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Datagrams is an error that names the policies which decide about datagrams to a port of the proxy; nil if all of them
// may pass. Envoy has no filter of policies for UDP, so nothing may pass where the answer depends on the sender, or is
// no.
func Datagrams(r *input.Reader, port uint32) error {
	set := r.ConnectionRules()
	found := concerning(set.Deny.Enforced, port)
	for _, p := range set.Custom {
		found = append(found, concerning(p.Enforced, port)...)
	}
	allow := set.Allow.Enforced
	if !slices.ContainsFunc(allow.List, func(rule *authz.Rule) bool { return takesAll(rule.TCP, port) }) {
		found = append(found, allow.Policies...)
	}
	if len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	return &plan.Unenforced{Err: fmt.Errorf("UDP port %d takes no datagrams: AuthorizationPolicy %s decides about them, and policies cannot "+
		"be applied to UDP; limit its rules to other ports, or allow all to this one", port, strings.Join(slices.Compact(found), ", "))}
}

// concerning lists the policies with a rule that may match datagrams to the port.
func concerning(rules authz.Rules, port uint32) []string {
	var out []string
	for _, rule := range rules.List {
		otherPort := func(m authz.Match) bool { return m.Field == authz.Port && !isPort(m, port) }
		elsewhere := func(c authz.Clause) bool { return slices.ContainsFunc(c, otherPort) }
		to := rule.TCP.To
		if !elsewhere(rule.TCP.When) && (len(to) == 0 || slices.ContainsFunc(to, func(c authz.Clause) bool { return !elsewhere(c) })) {
			out = append(out, rule.Namespace+"/"+rule.Policy)
		}
	}
	return out
}

// takesAll reports whether a form matches all datagrams to the port, whoever sends them.
func takesAll(form *authz.Form, port uint32) bool {
	all := func(c authz.Clause) bool {
		return !slices.ContainsFunc(c, func(m authz.Match) bool { return m.Field != authz.Port || !isPort(m, port) })
	}
	return len(form.From) == 0 && all(form.When) && (len(form.To) == 0 || slices.ContainsFunc(form.To, all))
}

// isPort reports whether a match of Port matches the port.
func isPort(m authz.Match, port uint32) bool {
	return m.Not != slices.ContainsFunc(m.Values, func(v authz.Value) bool { return v.Port == port })
}
