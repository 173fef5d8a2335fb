package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) httpRoute(at string, r *networking.HTTPRoute, role routeRole) {
	c.caption(at+".name", r.Name)
	c.httpAction(at, r, role)
	for i, m := range r.Match {
		c.httpMatch(index(at+".match", i), m)
	}
	weights := make([]int32, len(r.Route))
	for i, d := range r.Route {
		rp := index(at+".route", i)
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
	c.duration(at+".timeout", r.Timeout)
	c.retries(at+".retries", r.Retries)
	c.fault(at+".fault", r.Fault)
	c.mirror(at, r)
	c.cors(at+".corsPolicy", r.CorsPolicy)
	c.headers(at+".headers", r.Headers)
	c.oneAuthority(at, r)
}

// httpAction checks that a route does exactly one thing: send on, redirect, answer, or delegate.
func (c *checker) httpAction(at string, r *networking.HTTPRoute, role routeRole) {
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
		c.fail(at, nil, "route does nothing", "add one of route, redirect, directResponse or delegate")
	case len(actions) > 1:
		c.fail(at, nil, strings.Join(actions, " and ")+" exclude each other", "keep one of them")
	}
	c.failIf(r.Mirror != nil && len(r.Mirrors) > 0, at+".mirrors", nil, "cannot be set together with mirror", "keep mirrors")
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
			c.warn(at+"."+part.field, verdict{"what the proxy answers itself is not mirrored", "remove it"})
		case part.set:
			c.fail(at+"."+part.field, nil, "cannot be combined with "+actions[0], "remove "+part.field)
		}
	}
	c.redirectPrefix(at, r)
}

// redirectPrefix checks that a redirect that replaces a prefix has a prefix match.
func (c *checker) redirectPrefix(at string, r *networking.HTTPRoute) {
	if r.Redirect.GetPrefixRewrite() == "" {
		return
	}
	for i, m := range r.Match {
		if _, prefix := m.GetUri().GetMatchType().(*networking.StringMatch_Prefix); m.GetUri() != nil && !prefix {
			c.fail(at+".redirect.prefixRewrite", r.Redirect.PrefixRewrite, fmt.Sprintf("match[%d].uri has no prefix to replace", i),
				"match the uri by prefix, or set uri")
		}
	}
}

// delegateOf checks a route that delegates to another VirtualService.
func (c *checker) delegateOf(at string, r *networking.HTTPRoute, role routeRole) {
	if role == delegate {
		c.fail(at+".delegate", nil, "a delegate cannot delegate further", "put the routes here")
		return
	}
	for _, part := range []struct {
		field string
		set   bool
	}{{"route", len(r.Route) > 0}, {"redirect", r.Redirect != nil}} {
		c.failIf(part.set, at, nil, part.field+" and delegate exclude each other", "keep one of them")
	}
	if r.DirectResponse != nil {
		c.remark(at+".directResponse", "answers all that the delegate's routes match, unless they redirect",
			"keep one of directResponse and delegate")
	}
	c.warnIf(!dnsSubdomain(r.Delegate.Name), at+".delegate.name",
		verdict{"no VirtualService can have this name", "name the VirtualService that holds the routes"})
	c.possibleNamespace(at+".delegate.namespace", r.Delegate.Namespace)
}

func (c *checker) httpMatch(at string, m *networking.HTTPMatchRequest) {
	if m == nil {
		c.fail(at, nil, "match is empty", "remove it or fill it in")
		return
	}
	c.caption(at+".name", m.Name)
	c.caption(at+".statPrefix", m.StatPrefix)
	c.uriMatch(at+".uri", m.Uri)
	c.stringMatch(at+".scheme", m.Scheme)
	c.stringMatch(at+".method", m.Method)
	c.stringMatch(at+".authority", m.Authority)
	for _, name := range sortedKeys(m.Headers) {
		c.matchHeader(at+".headers", name, m.Headers[name])
	}
	for _, name := range sortedKeys(m.WithoutHeaders) {
		value := m.WithoutHeaders[name]
		if value.GetRegex() == "*" {
			// Not an expression: Istio's way to match requests without the header.
			value = &networking.StringMatch{}
		}
		c.matchHeader(at+".withoutHeaders", name, value)
	}
	for _, name := range sortedKeys(m.QueryParams) {
		c.failIf(name == "", at+".queryParams", nil, "parameter name is empty", "name the parameter")
		c.matchText(field(at+".queryParams", name), name)
		c.stringMatch(field(at+".queryParams", name), m.QueryParams[name])
	}
	c.l4Match(at, nil, m.Port, m.SourceLabels, m.Gateways, "")
	if ns := m.SourceNamespace; ns != "" && !nameLabel(ns) {
		c.fail(at+".sourceNamespace", ns, "not a namespace", "name a namespace")
	} else {
		c.possibleNamespace(at+".sourceNamespace", ns)
	}
}

// stringMatch checks a condition. An empty one matches any value that is present.
func (c *checker) stringMatch(at string, m *networking.StringMatch) {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		c.matchText(at+".exact", t.Exact)
	case *networking.StringMatch_Prefix:
		c.failIf(t.Prefix == "", at+".prefix", "", "prefix is empty", "write a prefix, or leave the match out to match everything")
		c.matchText(at+".prefix", t.Prefix)
	case *networking.StringMatch_Regex:
		if t.Regex == "" {
			c.fail(at+".regex", "", "regular expression is empty", "write an expression, or leave the match out to match everything")
			return
		}
		c.regex(at+".regex", t.Regex)
	}
}

// uriMatch checks the condition on the path, in which only the prefix may be empty, and warns of one that no path
// meets.
func (c *checker) uriMatch(at string, m *networking.StringMatch) {
	switch t := m.GetMatchType().(type) {
	case nil:
		c.warnIf(m != nil, at, verdict{"an empty condition holds for every path", "set exact, prefix or regex, or remove it"})
		return
	case *networking.StringMatch_Prefix:
		c.matchText(at+".prefix", t.Prefix)
	case *networking.StringMatch_Exact:
		c.remarkIf(t.Exact == "", at+".exact", "matches nothing: no path is empty", `write "/" for the root`)
		c.matchText(at+".exact", t.Exact)
	default:
		c.stringMatch(at, m)
	}
	if text := m.GetExact() + m.GetPrefix(); strings.ContainsAny(text, "?#") {
		c.remark(at, "matches nothing: it is compared with the path alone, without the query", "match the query with queryParams")
	}
}

// redirectCodes are the statuses that Envoy can redirect with.
var redirectCodes = []uint32{301, 302, 303, 307, 308}

func (c *checker) redirect(at string, r *networking.HTTPRedirect) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.RedirectPort == nil && r.Scheme == "" && r.PrefixRewrite == "" {
		c.fail(at, nil, "redirect changes nothing", "set uri, authority, port, derivePort or scheme")
	}
	c.failIf(r.Uri != "" && r.PrefixRewrite != "", at+".prefixRewrite", r.PrefixRewrite, "cannot be set together with uri", "keep one of them")
	if code := r.RedirectCode; code != 0 && !slices.Contains(redirectCodes, code) {
		c.fail(at+".redirectCode", code, "no redirect status", "use 301, 302, 303, 307 or 308")
	}
	if p, ok := r.RedirectPort.(*networking.HTTPRedirect_Port); ok && p.Port != 0 {
		checkPort(c, at+".port", p.Port)
	} else if ok {
		c.warn(at+".port", verdict{"0 is no port", "name the port, or remove it"})
	}
	c.failIf(r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https", at+".scheme", r.Scheme, "unknown scheme", "use http or https")
	c.redirectPath(at+".uri", r.Uri)
	c.redirectPath(at+".prefixRewrite", r.PrefixRewrite)
	if r.Authority != "" {
		c.authority(at+".authority", r.Authority)
	}
}

// redirectPath checks the path of a redirect, which follows the host in the Location.
func (c *checker) redirectPath(at, s string) {
	if s == "" {
		return
	}
	c.headerValueText(at, s)
	c.failIf(c.printable(at, s) && s[0] != '/', at, s, "not a path", "begin it with a slash; the host is authority")
}

func (c *checker) directResponse(at string, r *networking.HTTPDirectResponse) {
	if r == nil {
		return
	}
	c.failIf(r.Status < 200 || r.Status > 599, at+".status", r.Status, "no final HTTP status", "use 200 to 599")
	size := len(r.Body.GetString_()) + len(r.Body.GetBytes())
	if size > 1<<20 {
		c.fail(at+".body", nil, fmt.Sprintf("body has %d bytes, more than 1 MiB", size), "serve it from a workload")
	} else if size > 100<<10 {
		c.remark(at+".body", fmt.Sprintf("body has %d bytes, which every proxy that may answer with it is sent", size),
			"serve it from a workload")
	}
}

var backReference = regexp.MustCompile(`\\(.)?`)

func (c *checker) rewrite(at string, r *networking.HTTPRewrite) {
	if r == nil {
		return
	}
	c.failIf(r.Uri == "" && r.Authority == "" && r.UriRegexRewrite == nil, at, nil, "rewrite changes nothing",
		"set uri, uriRegexRewrite or authority")
	if r.Authority != "" {
		c.authority(at+".authority", r.Authority)
	}
	c.headerValueText(at+".uri", r.Uri)
	c.printable(at+".uri", r.Uri)
	x := r.UriRegexRewrite
	if x == nil {
		return
	}
	c.failIf(r.Uri != "", at+".uriRegexRewrite", nil, "cannot be set together with uri", "keep one of them")
	if x.Match == "" || x.Rewrite == "" {
		c.fail(at+".uriRegexRewrite", nil, "match and rewrite are both required", "set both")
		return
	}
	c.headerValueText(at+".uriRegexRewrite.rewrite", x.Rewrite)
	c.printable(at+".uriRegexRewrite.rewrite", x.Rewrite)
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
				c.fail(at+".uriRegexRewrite.rewrite", x.Rewrite, fmt.Sprintf(`\%d refers to a group that match does not have`, n),
					fmt.Sprintf("match has %d groups", re.NumSubexp()))
			}
		default:
			c.fail(at+".uriRegexRewrite.rewrite", x.Rewrite, `a backslash is followed by neither a digit nor a backslash`,
				`use \1 for a group and \\ for a backslash`)
		}
	}
}

func (c *checker) mirror(at string, r *networking.HTTPRoute) {
	if r.Mirror != nil {
		c.destination(at+".mirror", r.Mirror)
	}
	for mp, m := range each(at+".mirrors", r.Mirrors) {
		c.destination(mp+".destination", m.Destination)
		if m.Percentage != nil {
			c.percent(mp+".percentage.value", m.Percentage.Value)
		}
	}
	const without = "there is no mirror"
	if r.MirrorPercentage != nil {
		c.percent(at+".mirrorPercentage.value", r.MirrorPercentage.Value)
		c.warnIf(r.Mirror == nil, at+".mirrorPercentage", verdict{without, "set mirror, or the percentage of each of mirrors"})
	}
	//nolint:staticcheck // deprecated in Istio, still served
	old := r.MirrorPercent
	if old == nil {
		return
	}
	c.percent(at+".mirrorPercent", float64(old.Value))
	switch {
	case r.MirrorPercentage != nil:
		c.warn(at+".mirrorPercent", verdict{"mirrorPercentage comes before it", "remove it"})
	case r.Mirror == nil:
		c.warn(at+".mirrorPercent", verdict{without, "set mirror, or the percentage of each of mirrors"})
	default:
		c.remark(at+".mirrorPercent", "deprecated", "use mirrorPercentage")
	}
}
