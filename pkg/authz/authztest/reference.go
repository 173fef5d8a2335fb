// Package authztest has a second reading of AuthorizationPolicies, for tests that compare decisions with it.
package authztest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
)

// Reference decides requests as the API's documentation reads
// (istio.io/api/security/v1beta1/authorization_policy.proto and the list of conditions), straight from the specs.
type Reference struct {
	Policies []authz.Policy
	Options  authz.Options
}

// Decide returns "allowed", "denied" or, if providers are asked, "asks".
func (e Reference) Decide(r authz.Request) string {
	allowing, allowed, asked := false, false, false
	for _, p := range e.Policies {
		hit := slices.ContainsFunc(p.Spec.GetRules(), func(rule *security.Rule) bool { return e.rule(p, rule, &r) })
		switch p.Spec.GetAction() {
		case security.AuthorizationPolicy_CUSTOM:
			if hit && r.Answers[p.Spec.GetProvider().GetName()] == authz.Refuses {
				return "denied"
			}
			asked = asked || hit && r.Answers[p.Spec.GetProvider().GetName()] == authz.Unknown
		case security.AuthorizationPolicy_DENY:
			if hit {
				return "denied"
			}
		case security.AuthorizationPolicy_ALLOW:
			allowing, allowed = true, allowed || hit
		}
	}
	switch {
	case allowing && !allowed:
		return "denied"
	case asked:
		return "asks"
	}
	return "allowed"
}

// rule matches "when at least one source, one operation and all conditions matches the request". Of a connection
// without HTTP, an ALLOW rule with an attribute of HTTP matches none, and "missing attributes are treated as matches"
// else.
func (e Reference) rule(p authz.Policy, rule *security.Rule, r *authz.Request) bool {
	c := context{e, p.Namespace, r}
	if r.TCP && p.Spec.GetAction() == security.AuthorizationPolicy_ALLOW && needsHTTP(rule) {
		return false
	}
	from := func(f *security.Rule_From) bool {
		s := f.GetSource()
		return c.list(false, s.GetPrincipals(), s.GetNotPrincipals(), c.principal) &&
			c.list(true, s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), c.requestPrincipal) &&
			c.list(false, s.GetNamespaces(), s.GetNotNamespaces(), c.namespace) &&
			c.list(false, s.GetServiceAccounts(), s.GetNotServiceAccounts(), c.serviceAccount) &&
			c.list(false, s.GetTrustDomains(), s.GetNotTrustDomains(), c.trustDomain) &&
			c.list(false, s.GetIpBlocks(), s.GetNotIpBlocks(), inBlock(r.SourceIP)) &&
			c.list(false, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), inBlock(r.RemoteIP))
	}
	to := func(t *security.Rule_To) bool {
		op := t.GetOperation()
		return c.list(true, op.GetHosts(), op.GetNotHosts(), func(v string) bool { return like(strings.ToLower(v), strings.ToLower(r.Host)) }) &&
			c.list(true, op.GetMethods(), op.GetNotMethods(), func(v string) bool { return like(v, r.Method) }) &&
			c.list(true, op.GetPaths(), op.GetNotPaths(), c.path) &&
			c.list(false, op.GetPorts(), op.GetNotPorts(), c.port)
	}
	when := func(w *security.Condition) bool { return !c.condition(w) }
	return (len(rule.From) == 0 || slices.ContainsFunc(rule.From, from)) && (len(rule.To) == 0 || slices.ContainsFunc(rule.To, to)) &&
		!slices.ContainsFunc(rule.When, when)
}

func needsHTTP(rule *security.Rule) bool {
	return slices.ContainsFunc(rule.From, func(f *security.Rule_From) bool {
		return len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) > 0
	}) || slices.ContainsFunc(rule.To, func(t *security.Rule_To) bool {
		op := t.GetOperation()
		return len(op.GetHosts())+len(op.GetNotHosts())+len(op.GetMethods())+len(op.GetNotMethods())+len(op.GetPaths())+len(op.GetNotPaths()) > 0
	}) || slices.ContainsFunc(rule.When, func(w *security.Condition) bool { return strings.HasPrefix(w.Key, "request.") })
}

// context is one rule's: the namespace of its policy, and the request.
type context struct {
	Reference
	namespaceOfPolicy string
	r                 *authz.Request
}

// list is true if a value matches, or there are none, and no not matches.
func (c context) list(http bool, values, nots []string, matches func(string) bool) bool {
	if http && c.r.TCP {
		return true
	}
	return (len(values) == 0 || slices.ContainsFunc(values, matches)) && !slices.ContainsFunc(nots, matches)
}

// like has the four kinds of match: exact, prefix, suffix, presence.
func like(pattern, s string) bool {
	switch {
	case pattern == "*":
		return s != ""
	case strings.HasPrefix(pattern, "*"):
		return strings.HasSuffix(s, pattern[1:])
	case strings.HasSuffix(pattern, "*"):
		return strings.HasPrefix(s, strings.TrimSuffix(pattern, "*"))
	}
	return s == pattern
}

// identity divides "<TRUST_DOMAIN>/ns/<NAMESPACE>/sa/<SERVICE_ACCOUNT>".
func (c context) identity() (domain, namespace, account string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(c.r.Principal, "spiffe://"), "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", "", false
	}
	return parts[0], parts[2], parts[4], true
}

// own reports whether a trust domain is the mesh's or an alias: identities of all of them are one.
func (c context) own(domain string) bool {
	return domain == c.Options.TrustDomain || slices.Contains(c.Options.Aliases, domain)
}

func (c context) principal(v string) bool {
	id := strings.TrimPrefix(c.r.Principal, "spiffe://")
	if id == "" {
		return false
	}
	domain, rest, _ := strings.Cut(v, "/")
	own, after, _ := strings.Cut(id, "/")
	if strings.Count(rest, "/") == 3 && (c.own(domain) || domain == "cluster.local") {
		return c.own(own) && like(rest, after)
	}
	return like(v, id)
}

func (c context) namespace(v string) bool {
	_, ns, _, ok := c.identity()
	return ok && like(v, ns)
}

func (c context) serviceAccount(v string) bool {
	_, ns, name, ok := c.identity()
	if !strings.Contains(v, "/") {
		v = c.namespaceOfPolicy + "/" + v
	}
	return ok && v == ns+"/"+name
}

func (c context) trustDomain(v string) bool {
	domain, _, _, ok := c.identity()
	return ok && (like(v, domain) || c.own(v) && c.own(domain))
}

func (c context) requestPrincipal(v string) bool {
	iss, hasIss := c.r.Claims["iss"].(string)
	sub, hasSub := c.r.Claims["sub"].(string)
	return hasIss && hasSub && like(v, iss+"/"+sub)
}

func inBlock(a netip.Addr) func(string) bool {
	return func(v string) bool {
		if !strings.Contains(v, "/") {
			return a == netip.MustParseAddr(v)
		}
		return netip.MustParsePrefix(v).Contains(a)
	}
}

func (c context) port(v string) bool { return strconv.FormatUint(uint64(c.r.Port), 10) == v }

// path compares segments where the value has {*} or {**}.
func (c context) path(v string) bool {
	path, _, _ := strings.Cut(c.r.Path, "?")
	if !strings.Contains(v, "{*}") && !strings.Contains(v, "{**}") {
		return like(v, path)
	}
	return segments(strings.Split(v, "/"), strings.Split(path, "/"))
}

func segments(pattern, path []string) bool {
	if len(pattern) == 0 || len(path) == 0 {
		return len(pattern) == len(path)
	}
	if pattern[0] == "{**}" {
		return segments(pattern[1:], path[1:]) || segments(pattern, path[1:])
	}
	return (pattern[0] == path[0] || pattern[0] == "{*}" && path[0] != "") && segments(pattern[1:], path[1:])
}

func (c context) condition(w *security.Condition) bool {
	http, matches := strings.HasPrefix(w.Key, "request."), c.principal
	switch name := strings.TrimSuffix(w.Key[strings.IndexByte(w.Key, '[')+1:], "]"); {
	case w.Key == "source.ip":
		matches = inBlock(c.r.SourceIP)
	case w.Key == "remote.ip":
		matches = inBlock(c.r.RemoteIP)
	case w.Key == "destination.ip":
		matches = inBlock(c.r.DestinationIP)
	case w.Key == "destination.port":
		matches = c.port
	case w.Key == "source.namespace":
		matches = c.namespace
	case w.Key == "source.serviceAccount":
		matches = c.serviceAccount
	case w.Key == "source.trustDomain":
		matches = c.trustDomain
	case w.Key == "connection.sni":
		matches = func(v string) bool { return like(v, c.r.SNI) }
	case w.Key == "request.auth.principal":
		matches = c.requestPrincipal
	case w.Key == "request.auth.audiences", w.Key == "request.auth.presenter":
		matches = c.claim(map[string]string{"request.auth.audiences": "aud", "request.auth.presenter": "azp"}[w.Key])
	case strings.HasPrefix(w.Key, "request.auth.claims["):
		matches = c.claim(strings.Split(name, "][")...)
	case strings.HasPrefix(w.Key, "request.headers["):
		matches = func(v string) bool {
			values := c.r.Headers[name]
			return values != nil && (v == "*" || like(v, strings.Join(values, ",")))
		}
	}
	return c.list(http, w.Values, w.NotValues, matches)
}

func (c context) claim(path ...string) func(string) bool {
	var found any = c.r.Claims
	for _, name := range path {
		object, _ := found.(map[string]any)
		found = object[name]
	}
	return func(v string) bool {
		list, ok := found.([]any)
		if !ok {
			list = []any{found}
		}
		return slices.ContainsFunc(list, func(item any) bool {
			s, ok := item.(string)
			return ok && like(v, s)
		})
	}
}
