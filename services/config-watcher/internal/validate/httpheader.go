package validate

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
)

// pseudoHeaders are those of a request that a match may test like any other header.
var pseudoHeaders = []string{":authority", ":method", ":path", ":scheme"}

// ownFields are names that Istio ignores as headers of a match, because a field of the match has that name.
var ownFields = []string{"uri", "scheme", "method", "authority"}

func (c *checker) matchHeader(at, name string, m *networking.StringMatch) {
	path := field(at, name)
	switch {
	case strings.HasPrefix(name, "@"):
		c.fail(path, nil, "routing on claims is not available in this version of Fairlead: without a verified token the route would trust anybody", "match a header that your gateway sets")
		return
	case slices.Contains(ownFields, name):
		c.fail(path, nil, "is not tested as a header", "use the field "+name+" of the match, or :"+strings.Replace(name, "uri", "path", 1))
		return
	case strings.HasPrefix(name, ":"):
		if !slices.Contains(pseudoHeaders, name) {
			c.fail(path, nil, "no pseudo-header of a request", "use one of "+strings.Join(pseudoHeaders, ", "))
			return
		}
	default:
		c.headerName(path, name)
	}
	c.stringMatch(path, m, true)
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
	for i, name := range ops.Remove {
		rp := index(at+".remove", i)
		if strings.EqualFold(name, "host") || strings.HasPrefix(name, ":") {
			c.fail(rp, name, "the proxy cannot route without it", "remove another header")
			continue
		}
		c.headerName(rp, name)
	}
}

func (c *checker) changedHeader(at, name, value string, request bool) {
	switch {
	case strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host"):
		if !request {
			c.fail(at, nil, "a response has no such header", "set it on the request")
			return
		}
		// It rewrites the authority, as it stands: no command in it is evaluated.
		c.authority(at, value)
		return
	case strings.HasPrefix(name, ":"):
		c.fail(at, nil, "pseudo-headers cannot be changed", "only :authority can; use rewrite for the path")
	default:
		c.headerName(at, name)
	}
	c.headerValueText(at, value)
	if err := proxytext.HeaderValue(value); err != nil {
		c.fail(at, value, err.Error(), `write "%%" for a percent sign, or see Envoy's command operators`)
	}
}

// headerValueText refuses characters that would end the header (RFC 9110 §5.5).
func (c *checker) headerValueText(at, s string) {
	if len(s) > maxHeaderValue {
		c.fail(at, nil, "longer than 16 KiB", "shorten it")
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		c.fail(at, s, "contains a line break or a NUL", "remove it")
	}
}

// authority checks what a proxy writes into a Host header or a Location as it stands: a host, with a port or without.
func (c *checker) authority(at, s string) {
	if s == "" {
		c.fail(at, nil, "host is empty", "name a host, or leave it out")
		return
	}
	if len(s) > maxAuthority || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/\?#@%"<>`, r) }) {
		c.fail(at, s, "not a host", `write it like "example.com" or "example.com:8080"`)
	}
}

// printable refuses control characters, which no request line and no header has, and which would forge lines of a log.
func (c *checker) printable(at, s string) bool {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return true
	}
	c.fail(at, s, "contains a control character", "remove it")
	return false
}

// matchText checks text that a part of a request is compared with.
func (c *checker) matchText(at, s string) {
	if len(s) > maxHeaderValue {
		c.fail(at, nil, "longer than 16 KiB", "shorten it")
		return
	}
	c.printable(at, s)
}

// caption checks text for people: names of routes and of their statistics.
func (c *checker) caption(at, s string) {
	if len(s) > maxCaption {
		c.fail(at, nil, "longer than 256 bytes", "shorten it")
		return
	}
	c.printable(at, s)
}
