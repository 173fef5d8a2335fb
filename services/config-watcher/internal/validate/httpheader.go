package validate

import (
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
)

// pseudoHeaders are the pseudo-headers that a match may test. ":status" is accepted, but a request has none.
var pseudoHeaders = []string{":authority", ":method", ":path", ":scheme", ":status"}

func (c *checker) matchHeader(at, name string, m *networking.StringMatch) {
	path := field(at, name)
	switch {
	case strings.HasPrefix(name, "@"):
		c.fail(path, nil, "routing on claims is not available in this version of Fairlead: without a verified token the route would trust "+
			"anybody", "match a header that your gateway sets")
		return
	case name == ":status":
		c.remark(path, "a request has no status, so that it is never there", "remove it")
	case strings.HasPrefix(name, ":"):
		if !slices.Contains(pseudoHeaders, name) {
			c.fail(path, nil, "no pseudo-header of a request", "use one of "+strings.Join(pseudoHeaders[:4], ", "))
			return
		}
	default:
		c.headerName(path, name)
	}
	c.stringMatch(path, m)
}

func (c *checker) headers(at string, h *networking.Headers) {
	if h == nil {
		return
	}
	c.headerOperations(at+".request", h.Request, true)
	c.headerOperations(at+".response", h.Response, false)
}

func (c *checker) headerOperations(at string, ops *networking.Headers_HeaderOperations, request bool) {
	if ops == nil {
		return
	}
	for _, name := range sortedKeys(ops.Set) {
		c.changedHeader(field(at+".set", name), name, ops.Set[name], request)
	}
	for _, name := range sortedKeys(ops.Add) {
		c.changedHeader(field(at+".add", name), name, ops.Add[name], request)
	}
	for rp, name := range each(at+".remove", ops.Remove) {
		if strings.EqualFold(name, "host") || strings.HasPrefix(name, ":") {
			c.fail(rp, name, "the proxy cannot route without it", "remove another header")
			continue
		}
		c.headerName(rp, name)
	}
}

func (c *checker) changedHeader(at, name, value string, request bool) {
	switch {
	case isAuthority(name):
		if !request {
			c.fail(at, nil, "a response has no such header", "set it on the request")
			return
		}
		// The value is the authority itself: Envoy evaluates no command operators in it.
		c.authority(at, value)
	case strings.HasPrefix(name, ":"):
		c.fail(at, nil, "pseudo-headers cannot be changed", "only :authority can; use rewrite for the path")
	default:
		c.headerName(at, name)
		c.headerValueText(at, value)
	}
	const remedy = `write "%%" for a percent sign, or see Envoy's command operators`
	switch err := proxytext.HeaderValue(value); {
	case err != nil && !isAuthority(name):
		c.fail(at, value, err.Error(), remedy)
	case !commandsRE.MatchString(value):
		c.fail(at, value, "a percent sign begins no command as a header has them: with arguments in brackets, if any, and without a length",
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
func (c *checker) oneAuthority(at string, r *networking.HTTPRoute) {
	chosen := r.Rewrite.GetAuthority()
	request := r.Headers.GetRequest()
	for _, part := range []struct {
		field string
		names map[string]string
	}{{".headers.request.set", request.GetSet()}, {".headers.request.add", request.GetAdd()}} {
		for _, name := range sortedKeys(part.names) {
			if !isAuthority(name) {
				continue
			}
			if chosen != "" {
				c.fail(field(at+part.field, name), part.names[name], "the authority is already rewritten, to "+chosen,
					"keep one of rewrite.authority and the header")
				continue
			}
			chosen = part.names[name]
		}
	}
}

// headerValueText refuses characters that no header has (RFC 9110 §5.5).
func (c *checker) headerValueText(at, s string) {
	c.failIf(len(s) > maxHeaderValue, at, nil, "longer than 16 KiB", "shorten it")
	switch {
	case strings.ContainsAny(s, "\r\n\x00"):
		c.fail(at, s, "contains a line break or a NUL", "remove it")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		c.fail(at, s, "contains a control character", "remove it")
	}
}

// authority checks the value of a Host header, or the host of a Location: a host with or without port. Servers refuse
// others.
func (c *checker) authority(at, s string) {
	if s == "" {
		c.warn(at, verdict{"host is empty", "name a host, or leave it out"})
		return
	}
	c.headerValueText(at, s)
	if len(s) > maxAuthority || strings.ContainsFunc(s,
		func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/\?#@%"<>`, r) }) {
		c.remark(at, "not a host: servers refuse requests with such a name", `write it like "example.com" or "example.com:8080"`)
	}
}

// printable refuses control characters. No request line and no header has them, and they would forge lines of a log.
func (c *checker) printable(at, s string) bool {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return true
	}
	c.fail(at, s, "contains a control character", "remove it")
	return false
}

// matchText checks the text that a part of a request is compared with.
func (c *checker) matchText(at, s string) {
	if len(s) > maxHeaderValue {
		c.fail(at, nil, "longer than 16 KiB", "shorten it")
		return
	}
	c.printable(at, s)
}

// caption checks a name that people read: of a route or of its statistics.
func (c *checker) caption(at, s string) {
	if len(s) > maxCaption {
		c.fail(at, nil, "longer than 256 bytes", "shorten it")
		return
	}
	c.printable(at, s)
}
