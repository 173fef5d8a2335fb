package authz

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Request is an HTTP request, or with TCP a connection whose requests the proxy does not see. Headers and the like are
// those that the proxy's filters see: after the normalisation of the path, and with the port in the host unless it is
// stripped.
type Request struct {
	TCP bool
	// Principal is the URI of the caller's verified certificate; empty without one.
	Principal string
	// SourceIP is the address of the connection, RemoteIP that of the client behind trusted proxies.
	SourceIP, RemoteIP, DestinationIP netip.Addr
	Port                              uint32
	SNI                               string
	Host, Method                      string
	// Path may have a query and a fragment.
	Path string
	// Headers by name, in any case. Values of names that differ in case alone count in the order of these names.
	Headers map[string][]string
	// Claims are those of the verified token, as encoding/json decodes them and after SplitClaims; nil without a
	// token.
	Claims map[string]any
	// Metadata is the dynamic metadata of other filters, by filter and key.
	Metadata map[string]map[string]any
	// Answers are those of providers of CUSTOM policies, by name.
	Answers map[string]Answer
}

// Answer is what a provider says about a request.
type Answer uint8

// Answers of a provider. Refuses is also right for one that is broken, and Allows for one that is not asked, such as a
// provider for HTTP about a TCP connection.
const (
	Unknown Answer = iota
	Allows
	Refuses
)

// Outcome is what happens to a request.
type Outcome uint8

// Outcomes of a request. Asks says that the request is allowed if the providers that Decision names allow it.
const (
	Allowed Outcome = iota
	Denied
	Asks
)

// String returns "allowed", "denied" or "asks".
func (o Outcome) String() string { return [...]string{"allowed", "denied", "asks"}[o] }

// Decision says what happens to a request, and by which rule.
type Decision struct {
	Outcome Outcome
	// Action is the action that decided; empty if no policy did.
	Action string
	// Rule denied or allowed the request, or with Asks made it ask the first of Providers. Nil if no policy applies,
	// and if no rule of the ALLOW policies matched.
	Rule *Rule
	// Provider refused the request; Providers are those that are asked and whose answers are not known.
	Provider  string
	Providers []string
	// Audit matched the request: it is marked for the audit. Nil without.
	Audit *Rule
	// DryRunDeny and DryRunAllow are the rules of policies that are tried which match the request. Nil if none does.
	DryRunDeny, DryRunAllow *Rule
}

// Decide says what happens to a request that no filter for tokens refuses.
func (s *Set) Decide(r Request) Decision {
	d := Decision{
		Audit:      s.Audit.Enforced.first(&r),
		DryRunDeny: s.Deny.DryRun.first(&r), DryRunAllow: s.Allow.DryRun.first(&r),
	}
	var asking *Rule
	for _, p := range s.Custom {
		rule := p.Enforced.first(&r)
		if rule == nil {
			continue
		}
		switch r.Answers[p.Name] {
		case Refuses:
			d.Outcome, d.Action, d.Rule, d.Provider, d.Providers = Denied, Custom, rule, p.Name, nil
			return d
		case Unknown:
			if asking == nil {
				asking = rule
			}
			d.Providers = append(d.Providers, p.Name)
		}
	}
	if rule := s.Deny.Enforced.first(&r); rule != nil {
		d.Outcome, d.Action, d.Rule, d.Providers = Denied, Deny, rule, nil
		return d
	}
	if len(s.Allow.Enforced.Policies) > 0 {
		d.Action, d.Rule = Allow, s.Allow.Enforced.first(&r)
		if d.Rule == nil {
			d.Outcome, d.Providers = Denied, nil
			return d
		}
	}
	if asking != nil {
		d.Outcome, d.Action, d.Rule = Asks, Custom, asking
	}
	return d
}

// first returns the first rule that matches, nil if none does.
func (r *Rules) first(req *Request) *Rule {
	for _, rule := range r.List {
		if f := rule.form(req); f != nil && f.matches(req) {
			return rule
		}
	}
	return nil
}

// Matches reports whether the rule matches a request.
func (r *Rule) Matches(req Request) bool {
	f := r.form(&req)
	return f != nil && f.matches(&req)
}

func (r *Rule) form(req *Request) *Form {
	if req.TCP {
		return r.TCP
	}
	return r.HTTP
}

func (f *Form) matches(r *Request) bool {
	return anyClause(f.From, r) && anyClause(f.To, r) && f.When.failing(r) == nil
}

func anyClause(list []Clause, r *Request) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(c Clause) bool { return c.failing(r) == nil })
}

// failing returns the first match that fails, nil if all succeed.
func (c Clause) failing(r *Request) *Match {
	for i := range c {
		if !c[i].Matches(r) {
			return &c[i]
		}
	}
	return nil
}

// Matches reports whether the request meets the match.
func (m *Match) Matches(r *Request) bool {
	return slices.ContainsFunc(m.Values, func(v Value) bool { return m.equals(r, v) }) != m.Not
}

func (m *Match) equals(r *Request, v Value) bool {
	switch m.Field {
	case SourceIP:
		return contains(v.CIDR, r.SourceIP)
	case RemoteIP:
		return contains(v.CIDR, r.RemoteIP)
	case DestinationIP:
		return contains(v.CIDR, r.DestinationIP)
	case Port:
		return r.Port == v.Port
	case SNI:
		return v.String.Matches(r.SNI)
	case RequestPrincipal:
		iss, issued := r.Claims["iss"].(string)
		sub, about := r.Claims["sub"].(string)
		return issued && about && v.String.Matches(iss) && v.Subject.Matches(sub)
	case Claim:
		found := claim(r.Claims, m.Key)
		return stringIs(found, v.String) || listHas(found, v.String)
	case Metadata:
		found := r.Metadata[m.Key[0]][m.Key[1]]
		if v.List {
			return listHas(found, v.String)
		}
		return stringIs(found, v.String)
	default:
		s, ok := r.text(m)
		return ok && v.String.Matches(s)
	}
}

// text returns what Principal, Header, Host, Method and Path are of a request, and whether it has them.
func (r *Request) text(m *Match) (s string, ok bool) {
	switch m.Field {
	case Principal:
		s = r.Principal
	case Host:
		s = r.Host
	case Method:
		s = r.Method
	case Path:
		s, _, _ = strings.Cut(r.Path, "?")
		s, _, _ = strings.Cut(s, "#")
	case Header:
		return r.header(m.Key[0])
	}
	return s, s != ""
}

// header returns the value of a header, its name in lower case.
func (r *Request) header(name string) (string, bool) {
	switch name {
	case ":authority", "host":
		return r.Host, r.Host != ""
	case ":method":
		return r.Method, r.Method != ""
	case ":path":
		return r.Path, r.Path != ""
	}
	var names, found []string
	for k := range r.Headers {
		if lower(k) == name {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		found = append(found, r.Headers[k]...)
	}
	return strings.Join(found, ","), len(found) > 0
}

// claim returns a claim within claims, nil if there is none.
func claim(claims map[string]any, path []string) any {
	var v any = claims
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func stringIs(v any, m StringMatch) bool {
	s, ok := v.(string)
	return ok && m.Matches(s)
}

func listHas(v any, m StringMatch) bool {
	list, _ := v.([]any)
	return slices.ContainsFunc(list, func(item any) bool { return stringIs(item, m) })
}

func contains(block netip.Prefix, a netip.Addr) bool { return a.IsValid() && block.Contains(a.Unmap()) }

// SplitClaims returns claims as filters see them: scope, permission and the claims that a RequestAuthentication names
// as space-delimited are lists if they are strings. A "." in such a name leads into a claim that is an object.
func SplitClaims(claims map[string]any, spaceDelimited ...string) map[string]any {
	for _, name := range append([]string{"scope", "permission"}, spaceDelimited...) {
		claims = splitClaim(claims, strings.Split(name, "."))
	}
	return claims
}

// splitClaim returns claims with one claim split. It does not change its argument.
func splitClaim(claims map[string]any, path []string) map[string]any {
	var split any
	switch v := claims[path[0]].(type) {
	case string:
		if len(path) > 1 {
			return claims
		}
		list := []any{}
		for item := range strings.SplitSeq(v, " ") {
			if item != "" {
				list = append(list, item)
			}
		}
		split = list
	case map[string]any:
		if len(path) == 1 {
			return claims
		}
		split = splitClaim(v, path[1:])
	default:
		return claims
	}
	out := maps.Clone(claims)
	out[path[0]] = split
	return out
}
