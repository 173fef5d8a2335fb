package authz

import "slices"

// Datagrams names the policies, as "namespace/name", that decide about datagrams to a port of the workload, sorted;
// none if all datagrams may pass. Envoy has no filter of policies for UDP, so nothing may pass where the answer depends
// on the sender, or is no.
func (s *Set) Datagrams(port uint32) []string {
	found := concerning(s.Deny.Enforced, port)
	for _, p := range s.Custom {
		found = append(found, concerning(p.Enforced, port)...)
	}
	allow := s.Allow.Enforced
	if !slices.ContainsFunc(allow.List, func(rule *Rule) bool { return takesAll(rule.TCP, port) }) {
		found = append(found, allow.Policies...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// concerning lists the policies with a rule that may match datagrams to the port.
func concerning(rules Rules, port uint32) []string {
	var out []string
	for _, rule := range rules.List {
		otherPort := func(m Match) bool { return m.Field == Port && !isPort(m, port) }
		elsewhere := func(c Clause) bool { return slices.ContainsFunc(c, otherPort) }
		to := rule.TCP.To
		if !elsewhere(rule.TCP.When) && (len(to) == 0 || slices.ContainsFunc(to, func(c Clause) bool { return !elsewhere(c) })) {
			out = append(out, rule.Namespace+"/"+rule.Policy)
		}
	}
	return out
}

// takesAll reports whether a form matches all datagrams to the port, whoever sends them.
func takesAll(form *Form, port uint32) bool {
	all := func(c Clause) bool {
		return !slices.ContainsFunc(c, func(m Match) bool { return m.Field != Port || !isPort(m, port) })
	}
	return len(form.From) == 0 && all(form.When) && (len(form.To) == 0 || slices.ContainsFunc(form.To, all))
}

// isPort reports whether a match of Port matches the port.
func isPort(m Match, port uint32) bool {
	return m.Not != slices.ContainsFunc(m.Values, func(v Value) bool { return v.Port == port })
}
