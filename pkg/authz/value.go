package authz

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	spiffe = "spiffe://"
	// localTrustDomain stands in policies for the mesh's trust domain and its aliases.
	localTrustDomain = "cluster.local"
	// oneSegment and allSegments are the operators of a path's template.
	oneSegment  = "{*}"
	allSegments = "{**}"
)

// pattern reads "*", "*SUFFIX", "PREFIX*" or the exact text.
func pattern(s string) StringMatch {
	switch {
	case s == "*":
		return StringMatch{Kind: NotEmpty}
	case strings.HasPrefix(s, "*"):
		return StringMatch{Kind: Suffix, Text: s[1:]}
	case strings.HasSuffix(s, "*"):
		return StringMatch{Kind: Prefix, Text: s[:len(s)-1]}
	default:
		return StringMatch{Kind: Exact, Text: s}
	}
}

func text(s string) ([]Value, error) { return one(s, pattern(s)) }

func one(s string, m StringMatch) ([]Value, error) { return []Value{{Text: s, String: m}}, nil }

// header reads the value of a header: "*" matches an empty one too.
func header(s string) ([]Value, error) {
	if s == "*" {
		return one(s, StringMatch{Kind: Present})
	}
	return text(s)
}

func host(s string) ([]Value, error) {
	v, err := header(s)
	v[0].String.IgnoreCase = v[0].String.Kind != Present
	return v, err
}

// path reads a path, or a template of one.
func path(s string) ([]Value, error) {
	if !isTemplate(s) {
		return text(s)
	}
	if why := templateError(s); why != "" {
		return nil, fmt.Errorf("%s is not a template of a path: %s", quote(s), why)
	}
	segments := strings.Split(s, "/")
	for i, segment := range segments {
		switch segment {
		case oneSegment:
			segments[i] = "[^/]+"
		case allSegments:
			segments[i] = ".*"
		default:
			segments[i] = regexp.QuoteMeta(segment)
		}
	}
	return one(s, regex(strings.Join(segments, "/")))
}

func isTemplate(s string) bool {
	return strings.Contains(s, oneSegment) || strings.Contains(s, allSegments)
}

// segment matches the literal segments that a path with a template may have (RFC 3986, pchar).
var segment = regexp.MustCompile("^[a-zA-Z0-9-._~%!$&'()+,;:@=]+$")

// templateError says why a path that may be a template is not valid; empty if it is.
func templateError(s string) string {
	last := false
	for part := range strings.SplitSeq(strings.Trim(s, "/"), "/") {
		switch {
		case part == oneSegment || part == allSegments:
			if last {
				return "{**} is not the last operator"
			}
			last = part == allSegments
		case strings.ContainsAny(part, "{}"):
			return "a brace is not part of a segment {*} or {**}"
		case isTemplate(s) && !segment.MatchString(part):
			return "segment " + quote(part) + " is empty or has a character that no segment of a template may have"
		}
	}
	return ""
}

func port(s string) ([]Value, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s is not a port", quote(s))
	}
	return []Value{{Text: s, Port: uint32(n)}}, nil
}

// block reads an address or a block of them. An IPv4 address in the form of IPv6 is an IPv4 address, as which proxies
// see it.
func block(s string) ([]Value, error) {
	prefix, err := netip.ParsePrefix(s)
	if !strings.Contains(s, "/") {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(s); err == nil && addr.Zone() == "" {
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	if err != nil || !prefix.IsValid() {
		return nil, fmt.Errorf("%s is neither an IP address nor a CIDR block", quote(s))
	}
	if a := prefix.Addr(); a.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(a.Unmap(), prefix.Bits()-96)
	}
	return []Value{{Text: s, CIDR: prefix.Masked()}}, nil
}

// metadata reads the value of dynamic metadata, or "[VALUE]" for an item of a list.
func metadata(s string) ([]Value, error) {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return []Value{{Text: s, String: pattern(strings.Trim(s, "[]")), List: true}}, nil
	}
	return text(s)
}

// requestPrincipal reads "ISSUER/SUBJECT", divided at the last slash, since an issuer may be a URL.
func requestPrincipal(s string) ([]Value, error) {
	anything := StringMatch{Kind: NotEmpty}
	exact := func(s string) StringMatch { return StringMatch{Kind: Exact, Text: s} }
	v := Value{Text: s}
	slash := strings.LastIndexByte(s, '/')
	iss, sub := s[:max(slash, 0)], s[slash+1:]
	switch {
	case s == "*":
		v.String, v.Subject = anything, anything
	case slash < 0 && strings.HasPrefix(s, "*"):
		v.String, v.Subject = anything, pattern(s)
	case slash < 0 && strings.HasSuffix(s, "*"):
		v.String, v.Subject = pattern(s), anything
	case slash < 0:
		v.String, v.Subject = exact(s), exact("")
	case strings.HasPrefix(s, "*"):
		v.String, v.Subject = pattern(iss), exact(sub)
	case strings.HasSuffix(s, "*"):
		v.String, v.Subject = exact(iss), StringMatch{Kind: Prefix, Text: sub[:len(sub)-1]}
		if sub == "*" {
			v.Subject = anything
		}
	default:
		v.String, v.Subject = exact(iss), exact(sub)
	}
	return []Value{v}, nil
}

// namespace matches the namespace in the caller's identity. A "*" anywhere stands for any characters of it.
func namespace(s string) ([]Value, error) {
	if !strings.Contains(s, "*") {
		return one(s, StringMatch{Kind: Contains, Text: "/ns/" + s + "/"})
	}
	return one(s, regex(".*/ns/"+glob(s)+"/.*"))
}

// glob makes a regular expression of a text in which "*" stands for any characters but a slash.
func glob(s string) string { return strings.ReplaceAll(regexp.QuoteMeta(s), `\*`, "[^/]*") }

// serviceAccount matches "NAME", of the policy's namespace, or "NAMESPACE/NAME".
func (c *compiler) serviceAccount(s string) ([]Value, error) {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		ns, name = c.namespace, s
	}
	return one(s, regex(fmt.Sprintf("spiffe://.+/ns/%s/(.+/|)sa/%s(/.+)?", regexp.QuoteMeta(ns), regexp.QuoteMeta(name))))
}

// trustDomain matches the trust domain in the caller's identity. The mesh's trust domain and each of its aliases stand
// for all of them.
func (c *compiler) trustDomain(s string) (out []Value, _ error) {
	names := []string{s}
	if all := c.trustDomains(); slices.Contains(all, s) {
		names = all
	}
	for _, name := range names {
		m := StringMatch{Kind: Prefix, Text: spiffe + name + "/"}
		switch before, after, ok := strings.Cut(name, "*"); {
		case name == "*":
			m.Text = spiffe
		case ok:
			m = regex(spiffe + regexp.QuoteMeta(before) + "[^/]*" + regexp.QuoteMeta(after) + "/.*")
		}
		out = append(out, Value{Text: s, String: m})
	}
	return out, nil
}

func (c *compiler) trustDomains() []string { return append([]string{c.TrustDomain}, c.Aliases...) }

// principal matches the caller's identity without "spiffe://". In a full identity, the trust domain stands for all of
// the mesh's if it is one of them, or "cluster.local".
func (c *compiler) principal(s string) (out []Value, _ error) {
	for _, p := range c.withAliases(s) {
		m := pattern(p)
		switch m.Kind {
		case Suffix:
			m = regex(spiffe + ".*" + regexp.QuoteMeta(m.Text))
		case Prefix, Exact:
			m.Text = spiffe + m.Text
		}
		out = append(out, Value{Text: s, String: m})
	}
	return out, nil
}

func (c *compiler) withAliases(s string) []string {
	domain, rest, _ := strings.Cut(s, "/")
	known := c.trustDomains()
	if strings.Count(rest, "/") != 3 || domain == "*" || domain != localTrustDomain && !slices.ContainsFunc(known, func(k string) bool {
		return k == "*" || k == domain || fits(domain, k) || fits(k, domain)
	}) {
		return []string{s}
	}
	var out []string
	for _, k := range known {
		as := k + "/" + rest
		if suffix, ok := strings.CutPrefix(domain, "*"); ok && strings.HasSuffix(k, suffix) {
			as = s
		}
		if !slices.Contains(out, as) {
			out = append(out, as)
		}
	}
	return out
}

// fits reports whether s begins or ends as a pattern with a "*" at its end or beginning says.
func fits(s, pattern string) bool {
	prefix, begins := strings.CutSuffix(pattern, "*")
	suffix, ends := strings.CutPrefix(pattern, "*")
	return begins && strings.HasPrefix(s, prefix) || ends && strings.HasSuffix(s, suffix)
}

// quote quotes a text for a message, and shortens it.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}

// lower is strings.ToLower for ASCII, as which Envoy compares names of headers and hosts.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
