package networking

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

func (c Checker) httpRoute(at string, r *networking.HTTPRoute, role routeRole) {
	c.caption(at+".name", r.Name)
	c.httpAction(at, r, role)
	for i, m := range r.Match {
		c.httpMatch(manifest.Index(at+".match", i), m)
	}
	weights := make([]int32, len(r.Route))
	for i, d := range r.Route {
		rp := manifest.Index(at+".route", i)
		weights[i] = d.Weight
		c.destination(rp+".destination", d.Destination)
		c.headers(rp+".headers", d.Headers)
	}
	if len(weights) > 0 {
		c.weights(at+".route", weights)
	}
	c.redirect(at+".redirect", r.Redirect)
	c.directResponse(at+".directResponse", r.DirectResponse)
	c.rewrite(at+".rewrite", r.Rewrite)
	c.Duration(at+".timeout", r.Timeout)
	c.Retries(at+".retries", r.Retries)
	c.fault(at+".fault", r.Fault)
	c.mirror(at, r)
	c.cors(at+".corsPolicy", r.CorsPolicy)
	c.headers(at+".headers", r.Headers)
	c.oneAuthority(at, r)
}

// httpAction checks that a route does exactly one thing: send on, redirect, answer, or delegate.
func (c Checker) httpAction(at string, r *networking.HTTPRoute, role routeRole) {
	if r.Delegate != nil {
		c.delegateOf(at, r, role)
	}
	if role == root {
		return
	}
	var actions []string
	if len(r.Route) > 0 {
		actions = append(actions, "route")
	}
	if r.Redirect != nil {
		actions = append(actions, "redirect")
	}
	if r.DirectResponse != nil {
		actions = append(actions, "directResponse")
	}
	switch {
	case len(actions) == 0:
		c.Fail(at, nil, "route does nothing", "add one of route, redirect, directResponse or delegate")
	case len(actions) > 1:
		c.Fail(at, nil, strings.Join(actions, " and ")+" exclude each other", "keep one of them")
	}
	c.FailIf(r.Mirror != nil && len(r.Mirrors) > 0, at+".mirrors", nil, "cannot be set together with mirror", "keep mirrors")
	if r.Redirect == nil && r.DirectResponse == nil {
		return
	}
	for _, part := range []struct {
		field    string
		set      bool
		harmless bool
	}{{"rewrite", r.Rewrite != nil, false}, {"fault", r.Fault != nil, false}, {"mirror", r.Mirror != nil, true},
		{"mirrors", len(r.Mirrors) > 0, true}} {
		switch {
		case part.set && part.harmless:
			c.Warn(at+"."+part.field, "what the proxy answers itself is not mirrored", "remove it")
		case part.set:
			c.Fail(at+"."+part.field, nil, "cannot be combined with "+actions[0], "remove "+part.field)
		}
	}
	c.redirectPrefix(at, r)
}

// redirectPrefix checks that a redirect that replaces a prefix has a prefix match.
func (c Checker) redirectPrefix(at string, r *networking.HTTPRoute) {
	if r.Redirect.GetPrefixRewrite() == "" {
		return
	}
	for i, m := range r.Match {
		if _, prefix := m.GetUri().GetMatchType().(*networking.StringMatch_Prefix); m.GetUri() != nil && !prefix {
			c.Fail(at+".redirect.prefixRewrite", r.Redirect.PrefixRewrite, fmt.Sprintf("match[%d].uri has no prefix to replace", i),
				"match the uri by prefix, or set uri")
		}
	}
}

// delegateOf checks a route that delegates to another VirtualService.
func (c Checker) delegateOf(at string, r *networking.HTTPRoute, role routeRole) {
	if role == delegate {
		c.Fail(at+".delegate", nil, "a delegate cannot delegate further", "put the routes here")
		return
	}
	for _, part := range []struct {
		field string
		set   bool
	}{{"route", len(r.Route) > 0}, {"redirect", r.Redirect != nil}} {
		c.FailIf(part.set, at, nil, part.field+" and delegate exclude each other", "keep one of them")
	}
	if r.DirectResponse != nil {
		c.Remark(at+".directResponse", "answers all that the delegate's routes match, unless they redirect",
			"keep one of directResponse and delegate")
	}
	c.WarnIf(!check.DNSSubdomain(r.Delegate.Name), at+".delegate.name",
		"no VirtualService can have this name", "name the VirtualService that holds the routes")
	c.PossibleNamespace(at+".delegate.namespace", r.Delegate.Namespace)
}

func (c Checker) httpMatch(at string, m *networking.HTTPMatchRequest) {
	if m == nil {
		c.Fail(at, nil, "match is empty", "remove it or fill it in")
		return
	}
	c.caption(at+".name", m.Name)
	c.caption(at+".statPrefix", m.StatPrefix)
	c.uriMatch(at+".uri", m.Uri)
	c.stringMatch(at+".scheme", m.Scheme)
	c.stringMatch(at+".method", m.Method)
	c.stringMatch(at+".authority", m.Authority)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		c.matchHeader(at+".headers", name, m.Headers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.WithoutHeaders)) {
		value := m.WithoutHeaders[name]
		if value.GetRegex() == "*" {
			// Not an expression: Istio's way to match requests without the header.
			value = &networking.StringMatch{}
		}
		c.matchHeader(at+".withoutHeaders", name, value)
	}
	for _, name := range slices.Sorted(maps.Keys(m.QueryParams)) {
		c.FailIf(name == "", at+".queryParams", nil, "parameter name is empty", "name the parameter")
		c.MatchText(manifest.Field(at+".queryParams", name), name)
		c.stringMatch(manifest.Field(at+".queryParams", name), m.QueryParams[name])
	}
	c.l4Match(at, nil, m.Port, m.SourceLabels, m.Gateways, "")
	if ns := m.SourceNamespace; ns != "" && !check.NameLabel(ns) {
		c.Fail(at+".sourceNamespace", ns, "not a namespace", "name a namespace")
	} else {
		c.PossibleNamespace(at+".sourceNamespace", ns)
	}
}

// stringMatch checks a condition. An empty one matches any value that is present.
func (c Checker) stringMatch(at string, m *networking.StringMatch) {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		c.MatchText(at+".exact", t.Exact)
	case *networking.StringMatch_Prefix:
		c.FailIf(t.Prefix == "", at+".prefix", "", "prefix is empty", "write a prefix, or leave the match out to match everything")
		c.MatchText(at+".prefix", t.Prefix)
	case *networking.StringMatch_Regex:
		if t.Regex == "" {
			c.Fail(at+".regex", "", "regular expression is empty", "write an expression, or leave the match out to match everything")
			return
		}
		c.regex(at+".regex", t.Regex)
	}
}

// uriMatch checks the condition on the path, in which only the prefix may be empty, and warns of one that no path
// meets.
func (c Checker) uriMatch(at string, m *networking.StringMatch) {
	switch t := m.GetMatchType().(type) {
	case nil:
		c.WarnIf(m != nil, at, "an empty condition holds for every path", "set exact, prefix or regex, or remove it")
		return
	case *networking.StringMatch_Prefix:
		c.MatchText(at+".prefix", t.Prefix)
	case *networking.StringMatch_Exact:
		c.RemarkIf(t.Exact == "", at+".exact", "matches nothing: no path is empty", `write "/" for the root`)
		c.MatchText(at+".exact", t.Exact)
	default:
		c.stringMatch(at, m)
	}
	if text := m.GetExact() + m.GetPrefix(); strings.ContainsAny(text, "?#") {
		c.Remark(at, "matches nothing: it is compared with the path alone, without the query", "match the query with queryParams")
	}
}

// regex checks that Envoy compiles the expression and that it is not too large.
func (c Checker) regex(path, s string) bool {
	if err := proxytext.Regex(s); err != nil {
		c.Fail(path, s, err.Error(), "see https://github.com/google/re2/wiki/Syntax")
		return false
	}
	// Istio's webhook reads characters, Envoy reads bytes.
	if _, err := regexp.Compile(s); err != nil {
		c.Fail(path, s, "not a regular expression in RE2 syntax: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "),
			"see https://github.com/google/re2/wiki/Syntax")
		return false
	}
	return true
}

// redirectCodes are the statuses that Envoy can redirect with.
var redirectCodes = []uint32{301, 302, 303, 307, 308}

func (c Checker) redirect(at string, r *networking.HTTPRedirect) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.RedirectPort == nil && r.Scheme == "" && r.PrefixRewrite == "" {
		c.Fail(at, nil, "redirect changes nothing", "set uri, authority, port, derivePort or scheme")
	}
	c.FailIf(r.Uri != "" && r.PrefixRewrite != "", at+".prefixRewrite", r.PrefixRewrite, "cannot be set together with uri", "keep one of them")
	if code := r.RedirectCode; code != 0 && !slices.Contains(redirectCodes, code) {
		c.Fail(at+".redirectCode", code, "no redirect status", "use 301, 302, 303, 307 or 308")
	}
	if p, ok := r.RedirectPort.(*networking.HTTPRedirect_Port); ok && p.Port != 0 {
		check.Port(c.Verdict, at+".port", p.Port)
	} else if ok {
		c.Warn(at+".port", "0 is no port", "name the port, or remove it")
	}
	c.FailIf(r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https", at+".scheme", r.Scheme, "unknown scheme", "use http or https")
	c.redirectPath(at+".uri", r.Uri)
	c.redirectPath(at+".prefixRewrite", r.PrefixRewrite)
	if r.Authority != "" {
		c.authority(at+".authority", r.Authority)
	}
}

// redirectPath checks the path of a redirect, which follows the host in the Location.
func (c Checker) redirectPath(at, s string) {
	if s == "" {
		return
	}
	c.HeaderValue(at, s)
	c.FailIf(c.Printable(at, s) && s[0] != '/', at, s, "not a path", "begin it with a slash; the host is authority")
}

func (c Checker) directResponse(at string, r *networking.HTTPDirectResponse) {
	if r == nil {
		return
	}
	c.FailIf(r.Status < 200 || r.Status > 599, at+".status", r.Status, "no final HTTP status", "use 200 to 599")
	size := len(r.Body.GetString_()) + len(r.Body.GetBytes())
	if size > 1<<20 {
		c.Fail(at+".body", nil, fmt.Sprintf("body has %d bytes, more than 1 MiB", size), "serve it from a workload")
	} else if size > 100<<10 {
		c.Remark(at+".body", fmt.Sprintf("body has %d bytes, which every proxy that may answer with it is sent", size),
			"serve it from a workload")
	}
}

var backReference = regexp.MustCompile(`\\(.)?`)

func (c Checker) rewrite(at string, r *networking.HTTPRewrite) {
	if r == nil {
		return
	}
	c.FailIf(r.Uri == "" && r.Authority == "" && r.UriRegexRewrite == nil, at, nil, "rewrite changes nothing",
		"set uri, uriRegexRewrite or authority")
	if r.Authority != "" {
		c.authority(at+".authority", r.Authority)
	}
	c.HeaderValue(at+".uri", r.Uri)
	c.Printable(at+".uri", r.Uri)
	x := r.UriRegexRewrite
	if x == nil {
		return
	}
	c.FailIf(r.Uri != "", at+".uriRegexRewrite", nil, "cannot be set together with uri", "keep one of them")
	if x.Match == "" || x.Rewrite == "" {
		c.Fail(at+".uriRegexRewrite", nil, "match and rewrite are both required", "set both")
		return
	}
	c.HeaderValue(at+".uriRegexRewrite.rewrite", x.Rewrite)
	c.Printable(at+".uriRegexRewrite.rewrite", x.Rewrite)
	if !c.regex(at+".uriRegexRewrite.match", x.Match) {
		return
	}
	re, err := regexp.Compile(x.Match)
	if err != nil {
		return // c.regex has reported it
	}
	for _, m := range backReference.FindAllStringSubmatch(x.Rewrite, -1) {
		switch ref := m[1]; {
		case ref == `\`:
		case len(ref) == 1 && ref[0] >= '0' && ref[0] <= '9':
			if n := int(ref[0] - '0'); n > re.NumSubexp() {
				c.Fail(at+".uriRegexRewrite.rewrite", x.Rewrite, fmt.Sprintf(`\%d refers to a group that match does not have`, n),
					fmt.Sprintf("match has %d groups", re.NumSubexp()))
			}
		default:
			c.Fail(at+".uriRegexRewrite.rewrite", x.Rewrite, `a backslash is followed by neither a digit nor a backslash`,
				`use \1 for a group and \\ for a backslash`)
		}
	}
}

func (c Checker) mirror(at string, r *networking.HTTPRoute) {
	if r.Mirror != nil {
		c.destination(at+".mirror", r.Mirror)
	}
	for mp, m := range manifest.Items(at+".mirrors", r.Mirrors) {
		c.destination(mp+".destination", m.Destination)
		if m.Percentage != nil {
			c.Percent(mp+".percentage.value", m.Percentage.Value)
		}
	}
	const without = "there is no mirror"
	if r.MirrorPercentage != nil {
		c.Percent(at+".mirrorPercentage.value", r.MirrorPercentage.Value)
		c.WarnIf(r.Mirror == nil, at+".mirrorPercentage", without, "set mirror, or the percentage of each of mirrors")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	old := r.MirrorPercent
	if old == nil {
		return
	}
	c.Percent(at+".mirrorPercent", float64(old.Value))
	switch {
	case r.MirrorPercentage != nil:
		c.Warn(at+".mirrorPercent", "mirrorPercentage comes before it", "remove it")
	case r.Mirror == nil:
		c.Warn(at+".mirrorPercent", without, "set mirror, or the percentage of each of mirrors")
	default:
		c.Remark(at+".mirrorPercent", "deprecated", "use mirrorPercentage")
	}
}
