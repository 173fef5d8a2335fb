package networking

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Limits of single values, in bytes.
const (
	maxHeaderName = 256
	maxCaption    = 256
	maxAuthority  = 262 // a name of 255 bytes and a port
)

// tokenRE is RFC 9110's token: the characters of a header's or a method's name.
var tokenRE = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// pseudoHeaders are the pseudo-headers that a match may test. ":status" is accepted, but a request has none.
var pseudoHeaders = []string{":authority", ":method", ":path", ":scheme", ":status"}

func (c Checker) matchHeader(at, name string, m *networking.StringMatch) {
	path := manifest.Field(at, name)
	switch {
	case IsClaim(name):
		c.FailIf(len(name) > maxHeaderName, path, nil, "longer than 256 bytes", "shorten it")
		c.Printable(path, name)
	case name == ":status":
		c.Remark(path, "a request has no status, so that it is never there", "remove it")
	case strings.HasPrefix(name, ":"):
		if !slices.Contains(pseudoHeaders, name) {
			c.Fail(path, nil, "no pseudo-header of a request", "use one of "+strings.Join(pseudoHeaders[:4], ", "))
			return
		}
	default:
		c.headerName(path, name)
	}
	c.stringMatch(path, m)
}

// IsClaim reports whether a match names a claim of a verified token in the place of a header, as Istio writes it:
// "@request.auth.claims.group" or "@request.auth.claims[group][name]".
func IsClaim(name string) bool {
	const prefix = "@request.auth.claims"
	if len(name) < len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
		return false
	}
	rest := name[len(prefix):]
	return len(rest) > 1 && rest[0] == '.' || len(rest) > 2 && rest[0] == '[' && rest[len(rest)-1] == ']'
}

// claims refuses matches on claims in a VirtualService that is not for gateways alone: a sidecar does not see the
// caller's token before it routes.
func (c Checker) claims(vs *networking.VirtualService) {
	for at, r := range manifest.Items("spec.http", vs.Http) {
		for at, m := range manifest.Items(at+".match", r.Match) {
			for _, f := range []struct {
				field string
				names map[string]*networking.StringMatch
			}{{"headers", m.Headers}, {"withoutHeaders", m.WithoutHeaders}} {
				for _, name := range slices.Sorted(maps.Keys(f.names)) {
					c.FailIf(IsClaim(name), manifest.Field(at+"."+f.field, name), nil, "only gateways route by claims of a token",
						"name gateways, and not mesh, under spec.gateways")
				}
			}
		}
	}
}

func (c Checker) headers(at string, h *networking.Headers) {
	if h == nil {
		return
	}
	c.headerOperations(at+".request", h.Request, true)
	c.headerOperations(at+".response", h.Response, false)
}

func (c Checker) headerOperations(at string, ops *networking.Headers_HeaderOperations, request bool) {
	if ops == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(ops.Set)) {
		c.changedHeader(manifest.Field(at+".set", name), name, ops.Set[name], request)
	}
	for _, name := range slices.Sorted(maps.Keys(ops.Add)) {
		c.changedHeader(manifest.Field(at+".add", name), name, ops.Add[name], request)
	}
	for rp, name := range manifest.Items(at+".remove", ops.Remove) {
		if strings.EqualFold(name, "host") || strings.HasPrefix(name, ":") {
			c.Fail(rp, name, "the proxy cannot route without it", "remove another header")
			continue
		}
		c.headerName(rp, name)
	}
}

func (c Checker) changedHeader(at, name, value string, request bool) {
	switch {
	case isAuthority(name):
		if !request {
			c.Fail(at, nil, "a response has no such header", "set it on the request")
			return
		}
		// The value is the authority itself: Envoy evaluates no command operators in it.
		c.authority(at, value)
	case strings.HasPrefix(name, ":"):
		c.Fail(at, nil, "pseudo-headers cannot be changed", "only :authority can; use rewrite for the path")
	default:
		c.headerName(at, name)
		c.HeaderValue(at, value)
	}
	const remedy = `write "%%" for a percent sign, or see Envoy's command operators`
	switch err := proxytext.HeaderValue(value); {
	case err != nil && !isAuthority(name):
		c.Fail(at, value, err.Error(), remedy)
	case !commandsRE.MatchString(value):
		c.Fail(at, value, "a percent sign begins no command as a header has them: with arguments in brackets, if any, and without a length",
			remedy)
	}
}

// commandsRE matches header values whose command operators Istio's webhook accepts. It refuses some that access logs
// may have: "%REQ(x):10%" and "%PROTOCOL()%".
var commandsRE = func() *regexp.Regexp {
	const (
		text      = `(?:\\.|[^\\)"])*`
		list      = text + `(?:" *, *"` + text + `)*`
		arguments = `\( *(?:[^ []|\[ *")` + list + `(?:" *\] *)?\) *`
	)
	return regexp.MustCompile(`(?s)^(?:[^%]|%%|%[^%(]+%|%[^%(]*` + arguments + `%)*$`)
}()

// isAuthority reports whether a header is ":authority" or its HTTP/1 name "host".
func isAuthority(name string) bool {
	return strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host")
}

// oneAuthority checks that a route rewrites the authority only once.
func (c Checker) oneAuthority(at string, r *networking.HTTPRoute) {
	chosen := r.Rewrite.GetAuthority()
	request := r.Headers.GetRequest()
	for _, part := range []struct {
		field string
		names map[string]string
	}{{".headers.request.set", request.GetSet()}, {".headers.request.add", request.GetAdd()}} {
		for _, name := range slices.Sorted(maps.Keys(part.names)) {
			if !isAuthority(name) {
				continue
			}
			if chosen != "" {
				c.Fail(manifest.Field(at+part.field, name), part.names[name], "the authority is already rewritten, to "+chosen,
					"keep one of rewrite.authority and the header")
				continue
			}
			chosen = part.names[name]
		}
	}
}

// authority checks the value of a Host header, or the host of a Location: a host with or without port. Servers refuse
// others.
func (c Checker) authority(at, s string) {
	if s == "" {
		c.Warn(at, "host is empty", "name a host, or leave it out")
		return
	}
	c.HeaderValue(at, s)
	if len(s) > maxAuthority || strings.ContainsFunc(s,
		func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/\?#@%"<>`, r) }) {
		c.Remark(at, "not a host: servers refuse requests with such a name", `write it like "example.com" or "example.com:8080"`)
	}
}

// caption checks a name that people read: of a route or of its statistics.
func (c Checker) caption(at, s string) {
	if len(s) > maxCaption {
		c.Fail(at, nil, "longer than 256 bytes", "shorten it")
		return
	}
	c.Printable(at, s)
}

func (c Checker) headerName(path, s string) {
	c.FailIf(len(s) > maxHeaderName || !tokenRE.MatchString(s), path, s, "not a valid header name", "use letters, digits and '-'")
}

func (c Checker) token(path, s, what string) {
	c.FailIf(!tokenRE.MatchString(s), path, s, "not a valid "+what, "use letters, digits and '-'")
}
