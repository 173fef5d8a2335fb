// Package authz has the meaning of Istio's AuthorizationPolicy and RequestAuthentication: Applies says which workloads
// an object is about, Compile makes rules of the policies of one workload, and Set decides requests by them and says
// why. xds-server translates the same rules into Envoy's filters, so that what a command explains is what proxies do.
// What is wrong with an object, config-watcher says.
//
// Everything here is a function of its arguments, without I/O; a Memo saves work and changes no result.
package authz

import (
	"net/netip"
	"slices"
	"sync/atomic"

	security "istio.io/api/security/v1beta1"
)

// Policy is an AuthorizationPolicy that applies to a workload.
type Policy struct {
	Namespace, Name string
	Spec            *security.AuthorizationPolicy
	// DryRun is what the function DryRun says of the object's annotations: its rules are evaluated and not enforced.
	DryRun bool
	// Closed is true for an object that cannot be read and has no version that could: whatever Spec says, every
	// request to the workload is denied.
	Closed bool
	// Memo, if not nil, keeps the rules for further calls of Compile. It belongs to this policy alone.
	Memo *Memo
}

// Memo keeps the rules that Compile made last of one policy, which is the same in many sets. Its zero value is empty.
// It is safe for concurrent use.
type Memo struct{ last atomic.Pointer[memoised] }

type memoised struct {
	options Options
	rules   []*Rule
}

func (m *Memo) rules(o Options, compile func() []*Rule) []*Rule {
	if m == nil {
		return compile()
	}
	if last := m.last.Load(); last != nil && last.options.Equal(o) {
		return last.rules
	}
	rules := compile()
	m.last.Store(&memoised{options: o, rules: rules})
	return rules
}

// Options are the mesh's settings that change what rules mean.
type Options struct {
	// TrustDomain is the mesh's, and Aliases are others whose identities count as its own.
	TrustDomain string
	Aliases     []string
}

// Equal reports whether rules mean the same with both.
func (o Options) Equal(p Options) bool {
	return o.TrustDomain == p.TrustDomain && slices.Equal(o.Aliases, p.Aliases)
}

// Set has the rules of all policies of one workload, in the order in which they are evaluated: CUSTOM, then (after the
// verification of tokens) AUDIT, DENY and ALLOW. A Set is not changed once it is made; any number of goroutines may
// use it.
type Set struct {
	// Custom has the rules of each provider, by its name. A policy that names no provider has the name "".
	Custom             []Provider
	Audit, Deny, Allow Group
}

// Provider has the rules of action CUSTOM that ask one provider.
type Provider struct {
	Name string
	Group
}

// Group has the rules of one action.
type Group struct{ Enforced, DryRun Rules }

// ActionRules are the rules of one action of a Set: those that are enforced, or those in dry run.
type ActionRules struct {
	// Provider is asked; set for CUSTOM alone.
	Action, Provider string
	DryRun           bool
	Rules            Rules
}

// ByAction lists the rules by action, in the order of evaluation. There are entries for actions without rules, too.
func (s *Set) ByAction() []ActionRules {
	var out []ActionRules
	add := func(action, provider string, g Group) {
		out = append(out, ActionRules{action, provider, false, g.Enforced}, ActionRules{action, provider, true, g.DryRun})
	}
	for _, p := range s.Custom {
		add(Custom, p.Name, p.Group)
	}
	add(Audit, "", s.Audit)
	add(Deny, "", s.Deny)
	add(Allow, "", s.Allow)
	return out
}

// Rules are rules of one action, of which one must match.
type Rules struct {
	// Policies names the policies, as "namespace/name", sorted. A policy without rules is among them: an ALLOW policy
	// denies what no rule allows.
	Policies []string
	// List has the rules by name, which is the order in which Envoy evaluates them: the first that matches gives its
	// name to the decision.
	List []*Rule
}

// Rule is one rule of a policy.
type Rule struct {
	// Name is "ns[NAMESPACE]-policy[NAME]-rule[INDEX]", as Istio names Envoy's policies.
	Name string
	// Namespace and Policy name the policy; Index is the rule's place in it.
	Namespace, Policy string
	Index             int
	// HTTP says which requests match, and TCP which connections whose requests the proxy does not see. Either is nil
	// if none does. An ALLOW rule with a field of HTTP matches no such connection; a rule of another action is without
	// that field, and so matches more of them.
	HTTP, TCP *Form
	// Never says why HTTP or TCP is nil.
	Never string
	// Ignored names what was ignored of the rule because it is not valid. Of objects that config-watcher accepts it is
	// at most a condition about an attribute that there is not, of which it warns.
	Ignored []string
}

// Form matches if one clause of From matches, or From is empty; and one clause of To, or To is empty; and When.
type Form struct {
	From, To []Clause
	When     Clause
}

// Clause matches if all its matches do. An empty one matches everything.
type Clause []Match

// Match matches if one of the values matches, or, with Not, if none does. What a request lacks, such as a header,
// matches no value.
type Match struct {
	// Attribute names what is compared as a policy names it: "source.principal", "request.headers[x-id]", "paths".
	Attribute string
	Field     Field
	// Key has the name of a header in lower case (Header), the path of a claim in the token (Claim), or the name of a
	// filter and the key in its dynamic metadata (Metadata).
	Key    []string
	Values []Value
	Not    bool
}

// Field is a part of a request or connection.
type Field uint8

// The fields, with the part of Value that is compared.
const (
	// Principal is the URI of the caller's verified certificate, "spiffe://…" (String). Namespaces, service accounts
	// and trust domains are compared with parts of it.
	Principal Field = iota
	// RequestPrincipal is the token's issuer (String) and subject (Subject), of which both must match.
	RequestPrincipal
	// Claim is a claim of the token (String): a string, or a list in which one string matches.
	Claim
	// Header is the value of a header, repeated ones joined by commas (String).
	Header
	// Host is the header :authority (String), Method the header :method (String).
	Host
	Method
	// Path is the path without query and fragment (String).
	Path
	// SNI is the server name that the client asks for (String).
	SNI
	// Metadata is a value of dynamic metadata: a string (String), or with List a list in which one string matches.
	Metadata
	// SourceIP is the address of the connection, RemoteIP that of the client as found behind trusted proxies, and
	// DestinationIP the address that was called (CIDR).
	SourceIP
	RemoteIP
	DestinationIP
	// Port is the port that was called (Port).
	Port
)

// HTTPOnly reports whether the field exists in HTTP alone.
func (f Field) HTTPOnly() bool { return f >= RequestPrincipal && f <= Path }

// Value is one of the values of a Match. Field says which part is set.
type Value struct {
	// Text is the value as the policy has it.
	Text            string
	String, Subject StringMatch
	CIDR            netip.Prefix
	Port            uint32
	// List is about Metadata.
	List bool
}

// StringMatch compares a string.
type StringMatch struct {
	Kind Kind
	// Text is empty for Present and NotEmpty. For Regex it is an expression of RE2, which must match the whole string.
	Text string
	// IgnoreCase is true for hosts.
	IgnoreCase bool
	re         *expression
}

// same reports whether two values are compared alike.
func (v Value) same(o Value) bool {
	v.Text, o.Text, v.String.re, o.String.re = "", "", nil, nil
	return v == o
}

// Kind is how a StringMatch compares.
type Kind uint8

// Kinds of StringMatch.
const (
	Exact Kind = iota
	Prefix
	Suffix
	Contains
	Regex
	// Present matches every string: the header is there.
	Present
	// NotEmpty matches every string but the empty one.
	NotEmpty
)
