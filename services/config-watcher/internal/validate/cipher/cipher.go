// Package cipher knows the cipher suites and curves of Envoy's TLS library, and the expressions of suites that a
// Gateway may have.
package cipher

import (
	"slices"
	"strings"
)

// Suites are the suites of Envoy's TLS library, by their OpenSSL names.
var Suites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305",
	"ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA",
	"AES128-GCM-SHA256", "AES128-SHA",
	"AES256-GCM-SHA384", "AES256-SHA", "DES-CBC3-SHA",
}

// Curves are the curves of Envoy's TLS library.
var Curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

// all stands for every suite in an expression.
const all = "ALL"

// Known returns the cipher suites of a server that Envoy accepts, each once. Envoy would refuse the whole listener for
// any other suite, and for a suite listed twice. Package normalise writes the result into the resource.
func Known(list []string) []string {
	var out []string
	for _, s := range list {
		if s != "" && IsExpression(s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// IsExpression reports whether s is a suite that Envoy knows, or an expression of such suites: "-AES128-SHA" removes a
// suite, "!AES128-SHA" bans it, "+AES128-SHA" moves it to the end, "[AES128-SHA|AES256-SHA]" gives two the same rank,
// and "@STRENGTH" sorts.
func IsExpression(s string) bool {
	if len(parts(s)) == 0 {
		return s == "@STRENGTH"
	}
	return !slices.ContainsFunc(parts(s), func(part string) bool { return part != all && !slices.Contains(Suites, part) })
}

// parts are the suites that an expression names.
func parts(s string) []string {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return strings.Split(inner, "|")
		}
		return []string{s}
	}
	if s = strings.TrimLeft(s[:min(1, len(s))], "-!+") + s[min(1, len(s)):]; s == "" || s == "@STRENGTH" {
		return nil
	}
	return []string{s}
}

// LeavesAny reports whether a list of expressions that IsExpression accepts leaves any suite.
func LeavesAny(list []string) bool {
	chosen, banned := map[string]bool{}, map[string]bool{}
	for _, s := range list {
		for _, part := range parts(s) {
			each := []string{part}
			if part == all {
				each = Suites
			}
			for _, suite := range each {
				switch s[0] {
				case '!':
					banned[suite] = true
					delete(chosen, suite)
				case '-':
					delete(chosen, suite)
				case '+':
				default:
					if !banned[suite] {
						chosen[suite] = true
					}
				}
			}
		}
	}
	return len(chosen) > 0
}
