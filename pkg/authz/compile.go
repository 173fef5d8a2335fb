package authz

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"

	security "istio.io/api/security/v1beta1"
)

// DryRunAnnotation is the annotation of an AuthorizationPolicy that is tried and not enforced.
const DryRunAnnotation = "istio.io/dry-run"

// DryRun reports whether an AuthorizationPolicy with the annotations is tried and not enforced.
func DryRun(annotations map[string]string) bool {
	on, err := strconv.ParseBool(annotations[DryRunAnnotation])
	return err == nil && on
}

// Compile makes the rules of the policies that apply to one workload. Their order does not matter.
//
// What config-watcher refuses never opens anything: a rule of ALLOW with such a part matches nothing, and a rule of
// another action is without it, and so matches more. A policy with an unknown action denies everything.
func Compile(policies []Policy, o Options) *Set {
	s := &Set{}
	custom := map[string]*Provider{}
	for _, p := range policies {
		var group *Group
		switch action := p.Spec.GetAction(); {
		case p.Closed, security.AuthorizationPolicy_Action_name[int32(action)] == "":
			closed := &Rule{Name: ruleName(p, 0), Namespace: p.Namespace, Policy: p.Name, HTTP: &Form{}, TCP: &Form{}}
			s.Deny.Enforced.add(p, []*Rule{closed})
			continue
		case action == security.AuthorizationPolicy_CUSTOM:
			name := p.Spec.GetProvider().GetName()
			if custom[name] == nil {
				custom[name] = &Provider{Name: name}
			}
			group = &custom[name].Group
		case action == security.AuthorizationPolicy_AUDIT:
			group = &s.Audit
		case action == security.AuthorizationPolicy_DENY:
			group = &s.Deny
		default:
			group = &s.Allow
		}
		to := &group.Enforced
		if p.DryRun {
			to = &group.DryRun
		}
		to.add(p, p.Memo.rules(o, func() []*Rule { return compilePolicy(p, o) }))
	}
	for _, p := range custom {
		s.Custom = append(s.Custom, *p)
	}
	slices.SortFunc(s.Custom, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	for g := range s.groups() {
		g.Enforced.sort()
		g.DryRun.sort()
	}
	return s
}

// Connections returns the set without what exists in requests alone: its rules have no form for HTTP, and rules without
// one for TCP are gone. It decides connections as the set does.
func (s *Set) Connections() *Set {
	return s.Map(func(r *Rule) *Rule {
		if r.TCP == nil {
			return nil
		}
		return &Rule{Name: r.Name, Namespace: r.Namespace, Policy: r.Policy, Index: r.Index, TCP: r.TCP}
	})
}

// Map returns the set with what f makes of each rule in its place; a rule of which f makes nil is gone. Policies stay,
// also those whose rules are gone. f must not change the rule.
func (s *Set) Map(f func(*Rule) *Rule) *Set {
	rules := func(in Rules) Rules {
		out := Rules{Policies: in.Policies}
		for _, r := range in.List {
			if made := f(r); made != nil {
				out.List = append(out.List, made)
			}
		}
		return out
	}
	out := &Set{Custom: slices.Clone(s.Custom), Audit: s.Audit, Deny: s.Deny, Allow: s.Allow}
	for g := range out.groups() {
		*g = Group{Enforced: rules(g.Enforced), DryRun: rules(g.DryRun)}
	}
	return out
}

// Equal reports whether two sets have the same providers, policies and rules. What was ignored or never matches does
// not count.
func (s *Set) Equal(o *Set) bool {
	return slices.EqualFunc(s.Custom, o.Custom, func(a, b Provider) bool { return a.Name == b.Name && a.equal(b.Group) }) &&
		s.Audit.equal(o.Audit) && s.Deny.equal(o.Deny) && s.Allow.equal(o.Allow)
}

func (g Group) equal(o Group) bool { return g.Enforced.equal(o.Enforced) && g.DryRun.equal(o.DryRun) }

func (r Rules) equal(o Rules) bool {
	return slices.Equal(r.Policies, o.Policies) && slices.EqualFunc(r.List, o.List, func(a, b *Rule) bool {
		return a.Name == b.Name && a.HTTP.equal(b.HTTP) && a.TCP.equal(b.TCP)
	})
}

func (f *Form) equal(o *Form) bool {
	if f == o || f == nil || o == nil {
		return f == o
	}
	return slices.EqualFunc(f.From, o.From, Clause.equal) && slices.EqualFunc(f.To, o.To, Clause.equal) && f.When.equal(o.When)
}

func (c Clause) equal(o Clause) bool {
	return slices.EqualFunc(c, o, func(a, b Match) bool {
		return a.Attribute == b.Attribute && a.Field == b.Field && a.Not == b.Not && slices.Equal(a.Key, b.Key) &&
			slices.EqualFunc(a.Values, b.Values, Value.same)
	})
}

// groups yields the groups of all actions with the actions' names, in the order of evaluation.
func (s *Set) groups() iter.Seq2[*Group, string] {
	return func(yield func(*Group, string) bool) {
		for i := range s.Custom {
			if !yield(&s.Custom[i].Group, Custom) {
				return
			}
		}
		_ = yield(&s.Audit, Audit) && yield(&s.Deny, Deny) && yield(&s.Allow, Allow)
	}
}

// Names of the actions.
const (
	Custom = "CUSTOM"
	Audit  = "AUDIT"
	Deny   = "DENY"
	Allow  = "ALLOW"
)

func (r *Rules) add(p Policy, rules []*Rule) {
	r.Policies = append(r.Policies, p.Namespace+"/"+p.Name)
	r.List = append(r.List, rules...)
}

func (r *Rules) sort() {
	slices.Sort(r.Policies)
	r.Policies = slices.Compact(r.Policies)
	slices.SortFunc(r.List, func(a, b *Rule) int { return cmp.Compare(a.Name, b.Name) })
}

func ruleName(p Policy, index int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", p.Namespace, p.Name, index)
}

func compilePolicy(p Policy, o Options) []*Rule {
	rules := make([]*Rule, 0, len(p.Spec.GetRules()))
	for i, spec := range p.Spec.GetRules() {
		c := compiler{Options: o, namespace: p.Namespace, allow: p.Spec.GetAction() == security.AuthorizationPolicy_ALLOW}
		rule := &Rule{Name: ruleName(p, i), Namespace: p.Namespace, Policy: p.Name, Index: i}
		form := c.rule(spec)
		rule.Ignored = c.ignored
		switch {
		case c.allow && len(c.ignored) > 0:
			rule.Never = "it is not valid: " + c.ignored[0]
		case c.allow && c.http != "":
			rule.HTTP, rule.Never = form, c.http+" exists in HTTP alone"
		default:
			rule.HTTP, rule.TCP = form, form.withoutHTTP()
		}
		rules = append(rules, rule)
	}
	return rules
}

// withoutHTTP returns the form without the fields that exist in HTTP alone.
func (f *Form) withoutHTTP() *Form {
	clause := func(c Clause) Clause {
		kept := slices.DeleteFunc(slices.Clone(c), func(m Match) bool { return m.Field.HTTPOnly() })
		return slices.Clip(kept)
	}
	clauses := func(list []Clause) []Clause {
		var out []Clause
		for _, c := range list {
			out = append(out, clause(c))
		}
		return out
	}
	return &Form{From: clauses(f.From), To: clauses(f.To), When: clause(f.When)}
}

// compiler compiles one rule.
type compiler struct {
	Options
	namespace string
	// allow is true in a policy with action ALLOW.
	allow bool
	// ignored are descriptions of what is not valid, and http is the first attribute that exists in HTTP alone.
	ignored []string
	http    string
}

func (c *compiler) rule(r *security.Rule) *Form {
	f := &Form{}
	if r == nil {
		c.ignore("the rule is null")
		return f
	}
	for _, from := range r.GetFrom() {
		s := from.GetSource()
		var out Clause
		c.match(&out, "principals", Principal, nil, s.GetPrincipals(), s.GetNotPrincipals(), c.principal)
		c.match(&out, "requestPrincipals", RequestPrincipal, nil, s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), requestPrincipal)
		c.match(&out, "serviceAccounts", Principal, nil, s.GetServiceAccounts(), s.GetNotServiceAccounts(), c.serviceAccount)
		c.match(&out, "trustDomains", Principal, nil, s.GetTrustDomains(), s.GetNotTrustDomains(), c.trustDomain)
		c.match(&out, "namespaces", Principal, nil, s.GetNamespaces(), s.GetNotNamespaces(), namespace)
		c.match(&out, "remoteIpBlocks", RemoteIP, nil, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), block)
		c.match(&out, "ipBlocks", SourceIP, nil, s.GetIpBlocks(), s.GetNotIpBlocks(), block)
		f.From = append(f.From, out)
	}
	for _, to := range r.GetTo() {
		op := to.GetOperation()
		var out Clause
		c.match(&out, "hosts", Host, nil, op.GetHosts(), op.GetNotHosts(), host)
		c.match(&out, "methods", Method, nil, op.GetMethods(), op.GetNotMethods(), header)
		c.match(&out, "paths", Path, nil, op.GetPaths(), op.GetNotPaths(), path)
		c.match(&out, "ports", Port, nil, op.GetPorts(), op.GetNotPorts(), port)
		f.To = append(f.To, out)
	}
	for _, when := range r.GetWhen() {
		c.condition(&f.When, when)
	}
	return f
}

func (c *compiler) condition(out *Clause, when *security.Condition) {
	key := when.GetKey()
	a, err := attributeOf(key)
	if err != nil {
		c.ignore(err.Error())
		return
	}
	read := a.value
	if read == nil {
		read = map[string]reader{
			attrPrincipal: c.principal, attrServiceAccount: c.serviceAccount, attrTrustDomain: c.trustDomain,
		}[key]
	}
	c.match(out, key, a.field, a.key, when.GetValues(), when.GetNotValues(), read)
}

// reader makes of a value, as a policy has it, what is compared: values of which one must match.
type reader func(string) ([]Value, error)

// match appends the matches of a field's values and of its notValues.
func (c *compiler) match(out *Clause, attribute string, field Field, key, values, nots []string, read reader) {
	for _, not := range []bool{false, true} {
		list, name := values, attribute
		if not {
			list, name = nots, "not "+attribute
		}
		if len(list) == 0 {
			continue
		}
		if field.HTTPOnly() && c.http == "" {
			c.http = attribute
		}
		m := Match{Attribute: attribute, Field: field, Key: key, Not: not}
		for _, v := range list {
			alternatives, err := read(v)
			if err != nil {
				c.ignore(fmt.Sprintf("%s: %v", name, err))
				continue
			}
			for _, v := range alternatives {
				if !slices.ContainsFunc(m.Values, v.same) {
					m.Values = append(m.Values, v)
				}
			}
		}
		if len(m.Values) > 0 {
			*out = append(*out, m)
		}
	}
}

func (c *compiler) ignore(what string) { c.ignored = append(c.ignored, what) }
