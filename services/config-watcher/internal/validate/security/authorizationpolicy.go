package security

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Limits of serviceAccounts, as in Istio.
const (
	maxServiceAccounts = 16
	maxServiceAccount  = 320 // bytes
)

// policyChecker checks an AuthorizationPolicy.
type policyChecker struct {
	checker
	action security.AuthorizationPolicy_Action
}

// authorizationPolicy follows https://istio.io/latest/docs/reference/config/security/authorization-policy/.
func (c checker) authorizationPolicy(o *object.Object, p *security.AuthorizationPolicy) {
	c.Attached(p.Selector, p.TargetRef, p.TargetRefs)
	c.dryRun(o, p.Action)
	custom, provider := p.Action == security.AuthorizationPolicy_CUSTOM, p.GetProvider()
	switch {
	case len(p.Rules) == 0 && (custom || p.Action == security.AuthorizationPolicy_DENY):
		c.Fail("spec.rules", nil, p.Action.String()+" without rules never applies", "add the rule {} to have it apply to every request")
	case custom && provider.GetName() == "":
		c.Fail("spec.provider.name", nil, "missing for action CUSTOM", "name one of MeshConfig's extensionProviders")
	}
	c.FailIf(!custom && p.ActionDetail != nil, "spec.provider", provider.GetName(), "only action CUSTOM has a provider",
		"remove it, or use action CUSTOM")
	for at, r := range manifest.Items("spec.rules", p.Rules) {
		policyChecker{c, p.Action}.rule(at, r)
	}
}

func (c checker) dryRun(o *object.Object, action security.AuthorizationPolicy_Action) {
	v, ok := o.Annotations[authz.DryRunAnnotation]
	if !ok {
		return
	}
	at := manifest.Field("metadata.annotations", authz.DryRunAnnotation)
	if action != security.AuthorizationPolicy_ALLOW && action != security.AuthorizationPolicy_DENY {
		c.Fail(at, v, "a policy with action "+action.String()+" cannot be tried", "remove it, or use action ALLOW or DENY")
		return
	}
	_, err := strconv.ParseBool(v)
	c.FailIf(err != nil, at, v, "neither true nor false", `write "true" to try the policy, "false" to enforce it`)
}

func (c policyChecker) rule(at string, r *security.Rule) {
	for at, f := range manifest.Items(at+".from", r.From) {
		if f.GetSource() == nil {
			c.Fail(at+".source", nil, "missing", "name what the source has to be, or remove the item")
			continue
		}
		c.source(at+".source", f.Source)
	}
	for at, t := range manifest.Items(at+".to", r.To) {
		if t.GetOperation() == nil {
			c.Fail(at+".operation", nil, "missing", "name what the operation has to be, or remove the item")
			continue
		}
		c.operation(at+".operation", t.Operation)
	}
	for at, w := range manifest.Items(at+".when", r.When) {
		c.condition(at, w)
	}
	if c.action == security.AuthorizationPolicy_DENY && httpOnly(r) {
		c.Remark(at, "denies every connection to TCP ports as well: it has attributes of HTTP alone", "name the ports under to.operation.ports")
	}
}

// httpOnly reports whether Istio warns that a DENY rule closes ports of TCP: where it has operations, none names a
// port; where it has sources alone, none has an attribute that TCP has.
func httpOnly(r *security.Rule) bool {
	if len(r.To) > 0 {
		return !slices.ContainsFunc(r.To, func(t *security.Rule_To) bool {
			return len(t.GetOperation().GetPorts()) > 0 || len(t.GetOperation().GetNotPorts()) > 0
		})
	}
	return len(r.From) > 0 && !slices.ContainsFunc(r.From, func(f *security.Rule_From) bool {
		s := f.GetSource()
		for _, list := range [][]string{s.GetPrincipals(), s.GetNotPrincipals(), s.GetNamespaces(), s.GetNotNamespaces(), s.GetServiceAccounts(),
			s.GetNotServiceAccounts(), s.GetIpBlocks(), s.GetNotIpBlocks(), s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks()} {
			if len(list) > 0 {
				return true
			}
		}
		return false
	})
}

// values is a field of a rule that lists values.
type values struct {
	name  string
	list  []string
	check func(at string, list []string)
	// identity is true for a field that CUSTOM cannot have.
	identity bool
}

// texts checks a list of values that what names.
func (c policyChecker) texts(what string) func(at string, list []string) {
	return func(at string, list []string) { c.filled(at, list, what) }
}

func (c policyChecker) source(at string, s *security.Source) {
	principal, namespace, request := c.texts("principal"), c.texts("namespace"), c.texts("request principal")
	c.fields(at, "source", []values{
		{"principals", s.Principals, principal, true}, {"notPrincipals", s.NotPrincipals, principal, true},
		{"requestPrincipals", s.RequestPrincipals, request, true}, {"notRequestPrincipals", s.NotRequestPrincipals, request, true},
		{"namespaces", s.Namespaces, namespace, true}, {"notNamespaces", s.NotNamespaces, namespace, true},
		{"serviceAccounts", s.ServiceAccounts, c.serviceAccounts, true}, {"notServiceAccounts", s.NotServiceAccounts, c.serviceAccounts, true},
		{"trustDomains", s.TrustDomains, c.trustDomains, true}, {"notTrustDomains", s.NotTrustDomains, c.trustDomains, true},
		{"ipBlocks", s.IpBlocks, c.ipBlocks, false}, {"notIpBlocks", s.NotIpBlocks, c.ipBlocks, false},
		{"remoteIpBlocks", s.RemoteIpBlocks, c.ipBlocks, false}, {"notRemoteIpBlocks", s.NotRemoteIpBlocks, c.ipBlocks, false},
	})
	if len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0 &&
		len(s.Principals)+len(s.NotPrincipals)+len(s.Namespaces)+len(s.NotNamespaces) > 0 {
		c.Fail(at+".serviceAccounts", nil, "cannot be combined with principals or namespaces", "keep one of them")
	}
}

func (c policyChecker) operation(at string, o *security.Operation) {
	method, host := c.texts("method"), c.texts("host")
	c.fields(at, "operation", []values{
		{"hosts", o.Hosts, host, false}, {"notHosts", o.NotHosts, host, false},
		{"ports", o.Ports, c.ports, false}, {"notPorts", o.NotPorts, c.ports, false},
		{"methods", o.Methods, method, false}, {"notMethods", o.NotMethods, method, false},
		{"paths", o.Paths, c.paths, false}, {"notPaths", o.NotPaths, c.paths, false},
	})
}

func (c policyChecker) fields(at, what string, fields []values) {
	set := false
	for _, f := range fields {
		if len(f.list) == 0 {
			continue
		}
		set = true
		if f.identity && c.action == security.AuthorizationPolicy_CUSTOM {
			c.notCustom(at+"."+f.name, nil)
		}
		f.check(at+"."+f.name, f.list)
	}
	c.FailIf(!set, at, nil, "is empty", "name what the "+what+" has to be, or remove the item")
}

func (c policyChecker) notCustom(at string, value any) {
	c.Fail(at, value, "not possible with action CUSTOM, which Istio asks before tokens are verified",
		"use ipBlocks, hosts, paths, methods or headers, or decide it in another policy")
}

func (c policyChecker) serviceAccounts(at string, list []string) {
	c.FailIf(len(list) > maxServiceAccounts, at, len(list), "more than "+strconv.Itoa(maxServiceAccounts)+" service accounts",
		"divide them between several items of from")
	for i, s := range list {
		at, parts := manifest.Index(at, i), strings.Split(s, "/")
		switch {
		case strings.Contains(s, "*"):
			c.Fail(at, s, "wildcards are not possible for service accounts", "write it in full, or use principals")
		case len(s) > maxServiceAccount:
			c.Fail(at, nil, "longer than "+strconv.Itoa(maxServiceAccount)+" bytes", "shorten it")
		case len(parts) > 2 || slices.Contains(parts, ""):
			c.Fail(at, s, "not a service account", `write "account" or "namespace/account"`)
		default:
			c.Printable(at, s)
		}
	}
}

func (c policyChecker) trustDomains(at string, list []string) {
	c.wildcards(at, list, "trust domain")
	for i, s := range list {
		c.FailIf(strings.Contains(s, "/"), manifest.Index(at, i), s, "not a trust domain: it contains a slash", `write it like "cluster.local"`)
	}
}

// wildcards refuses values with a wildcard that is neither the first nor the last character, or with several.
func (c policyChecker) wildcards(at string, list []string, what string) {
	c.filled(at, list, what)
	for i, s := range list {
		inner := strings.TrimPrefix(s, "*")
		if inner == s {
			inner = strings.TrimSuffix(s, "*")
		}
		c.FailIf(strings.Contains(inner, "*"), manifest.Index(at, i), s, "only one wildcard is possible, at the beginning or the end",
			`write it like "*.example.com" or "prod-*"`)
	}
}

func (c policyChecker) ipBlocks(at string, list []string) {
	for i, s := range list {
		c.IPOrCIDR(manifest.Index(at, i), s)
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() != "" {
			c.Fail(manifest.Index(at, i), s, "an address of a packet has no zone", "remove "+strconv.Quote("%"+a.Zone()))
		}
	}
}

func (c policyChecker) ports(at string, list []string) {
	for i, s := range list {
		_, err := strconv.ParseUint(s, 10, 16)
		c.FailIf(err != nil, manifest.Index(at, i), s, "not a port", `use "0" to "65535"`)
	}
}

// segment is one of a path with a template, in RFC 3986's characters of a segment.
var segment = regexp.MustCompile(`^[a-zA-Z0-9\-._~%!$&'()+,;:@=]+$`)

func (c policyChecker) paths(at string, list []string) {
	c.filled(at, list, "path")
	for i, s := range list {
		at, templated := manifest.Index(at, i), strings.Contains(s, "{*}") || strings.Contains(s, "{**}")
		rest := false // {**} has been seen
		for part := range strings.SplitSeq(strings.Trim(s, "/"), "/") {
			reason, remedy := "", ""
			switch wildcard := part == "{*}" || part == "{**}"; {
			case wildcard && rest:
				reason, remedy = "{**} is not the last template", "move it behind the others"
			case wildcard:
				rest = part == "{**}"
			case strings.ContainsAny(part, "{}"):
				reason, remedy = "braces are for whole segments, {*} or {**}", "remove them, or write %7B and %7D"
			case templated && !segment.MatchString(part):
				reason = "segment " + strconv.Quote(part) + " cannot stand beside a template"
				remedy = "use letters, digits and percent-encoding in it, and one slash between two"
			}
			if reason != "" {
				c.Fail(at, s, reason, remedy)
				break
			}
		}
		if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "*") && !strings.HasPrefix(s, "{") && s != "" {
			c.Remark(at, "matches no request: a path begins with a slash", "write "+strconv.Quote("/"+s))
		}
	}
}

// attribute is a key of conditions.
type attribute struct {
	name string
	// keyed is true for an attribute with a key in brackets.
	keyed bool
	check func(c policyChecker, at string, list []string)
	// identity is true for an attribute that CUSTOM cannot have.
	identity bool
}

var attributes = []attribute{
	{"request.headers", true, policyChecker.anyText, false},
	{"source.ip", false, policyChecker.ipBlocks, false},
	{"remote.ip", false, policyChecker.ipBlocks, false},
	{"source.namespace", false, policyChecker.anyText, true},
	{"source.serviceAccount", false, policyChecker.serviceAccounts, true},
	{"source.principal", false, policyChecker.anyText, true},
	{"source.trustDomain", false, func(c policyChecker, at string, list []string) { c.wildcards(at, list, "value") }, true},
	{"request.auth.principal", false, policyChecker.anyText, true},
	{"request.auth.audiences", false, policyChecker.anyText, true},
	{"request.auth.presenter", false, policyChecker.anyText, true},
	{"request.auth.claims", true, policyChecker.anyText, true},
	{"destination.ip", false, policyChecker.ipBlocks, false},
	{"destination.port", false, policyChecker.ports, false},
	{"connection.sni", false, policyChecker.anyText, false},
	{"experimental.envoy.filters.", true, policyChecker.anyText, false},
}

// replaced are attributes of earlier versions, with what there is instead.
var replaced = []struct{ prefix, remedy string }{
	{"destination.namespace", "create the policy in that namespace"},
	{"destination.labels", "use selector.matchLabels"},
	{"destination.name", "use selector.matchLabels"},
	{"destination.user", "use selector.matchLabels"},
}

func (c policyChecker) anyText(at string, list []string) { c.filled(at, list, "value") }

func (c policyChecker) condition(at string, w *security.Condition) {
	if w.Key == "" {
		c.Fail(at+".key", nil, "missing", `name an attribute, such as "request.headers[x-version]"`)
		return
	}
	if c.action == security.AuthorizationPolicy_CUSTOM && strings.HasPrefix(w.Key, "request.auth.") {
		c.notCustom(at+".key", w.Key)
		return
	}
	c.FailIf(len(w.Values)+len(w.NotValues) == 0, at, nil, "names no value", "set values or notValues")
	i := slices.IndexFunc(attributes, func(a attribute) bool {
		return w.Key == a.name || a.keyed && strings.HasPrefix(w.Key, a.name)
	})
	if i < 0 {
		c.unknownAttribute(at+".key", w.Key)
		return
	}
	a := attributes[i]
	if open := strings.IndexByte(w.Key, '['); a.keyed && (open < 1 || !strings.HasSuffix(w.Key, "]") || open >= len(w.Key)-2) {
		c.Fail(at+".key", w.Key, "needs a name in brackets", "write "+strconv.Quote(strings.TrimSuffix(a.name, ".")+"[name]"))
		return
	}
	c.RemarkIf(!authz.IsAttribute(w.Key), at+".key", "no attribute: "+effects[c.action]+", although Istio accepts it",
		"write "+strconv.Quote(strings.TrimSuffix(a.name, ".")+"[name]"))
	c.inHeader(at+".key", w.Key)
	if a.identity && c.action == security.AuthorizationPolicy_CUSTOM {
		c.notCustom(at+".key", w.Key)
	}
	a.check(c, at+".values", w.Values)
	a.check(c, at+".notValues", w.NotValues)
}

// effects say what a condition that is none does in a policy of an action.
var effects = map[security.AuthorizationPolicy_Action]string{
	security.AuthorizationPolicy_ALLOW: "the rule allows nothing", security.AuthorizationPolicy_DENY: "the rule denies as without it",
	security.AuthorizationPolicy_AUDIT: "the rule matches as without it", security.AuthorizationPolicy_CUSTOM: "the rule asks as without it",
}

func (c policyChecker) unknownAttribute(at, key string) {
	for _, r := range replaced {
		if strings.HasPrefix(key, r.prefix) {
			c.Fail(at, key, "no attribute of conditions any more", r.remedy)
			return
		}
	}
	var names []string
	for _, a := range attributes {
		name := strings.TrimSuffix(a.name, ".")
		if a.keyed {
			name += "[]"
		}
		names = append(names, name)
	}
	c.Fail(at, key, "unknown attribute", decode.Suggest(key, names))
}
