package books

import (
	"net/http"
	"strings"
)

// Caller returns the identity of the client that the server's own sidecar has verified: the URI of the last element of
// X-Forwarded-Client-Cert, which that sidecar has added; earlier elements come from the client's side. It is empty
// without the header: there is no sidecar, or no mutual TLS.
//
// The format is Envoy's: elements divided by commas, of key=value pairs divided by semicolons, values optionally in
// double quotes with backslash escapes.
func Caller(h http.Header) string {
	// Several header lines mean the same as one joined by commas (RFC 9110, 5.3).
	joined := strings.Join(h.Values("X-Forwarded-Client-Cert"), ",")
	elements := splitUnquoted(joined, ',')
	for _, pair := range splitUnquoted(elements[len(elements)-1], ';') {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if ok && strings.EqualFold(key, "URI") {
			return unquote(value)
		}
	}
	return ""
}

// splitUnquoted divides s at every sep outside double quotes. The result is never empty.
func splitUnquoted(s string, sep byte) []string {
	var parts []string
	start, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// unquote removes a value's double quotes, if it has any.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	var b strings.Builder
	s = s[1 : len(s)-1]
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
