package validate

import (
	"slices"
	"strings"
)

// allCiphers stands for every suite in an expression.
const allCiphers = "ALL"

// CipherSuites returns the cipher suites of a server that Envoy accepts, each once. Envoy would refuse the whole
// listener for any other suite, and for a suite listed twice. Package normalise writes the result into the resource.
func CipherSuites(list []string) []string {
	var out []string
	for _, s := range list {
		if s != "" && isCipher(s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// isCipher reports whether s is a suite that Envoy knows, or an expression of such suites: "-AES128-SHA" removes a
// suite, "!AES128-SHA" bans it, "+AES128-SHA" moves it to the end, "[AES128-SHA
// AES256-SHA]" gives two the same rank, and "@STRENGTH" sorts.
func isCipher(s string) bool {
	if len(cipherParts(s)) == 0 {
		return s == "@STRENGTH"
	}
	return !slices.ContainsFunc(cipherParts(s), func(part string) bool { return part != allCiphers && !slices.Contains(cipherSuites, part) })
}

// cipherParts are the suites that an expression names.
func cipherParts(s string) []string {
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

// anyCipher reports whether a list of expressions that isCipher accepts leaves any suite.
func anyCipher(list []string) bool {
	chosen, banned := map[string]bool{}, map[string]bool{}
	for _, s := range list {
		for _, part := range cipherParts(s) {
			each := []string{part}
			if part == allCiphers {
				each = cipherSuites
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

// ciphers warns of cipher suites that Envoy does not know, and refuses expressions that Envoy would refuse.
func (c *checker) ciphers(at string, list []string) {
	for i, s := range list {
		switch plain := s == "" || s[0] >= '0' && s[0] <= '9' || s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z'; {
		case s == "":
		case slices.Index(list, s) < i:
			c.warn(index(at, i), verdict{"listed twice", "keep one of them"})
		case isCipher(s):
		case plain:
			c.warn(index(at, i), verdict{"no cipher suite that proxies know", suggestion(s, cipherSuites)})
		default:
			c.fail(index(at, i), s, "no expression of cipher suites that proxies know",
				`write a suite such as "AES128-SHA", "-AES128-SHA" to take it out, or "[AES128-SHA|AES256-SHA]" for suites of one rank`)
		}
	}
	if known := CipherSuites(list); len(known) > 0 && !anyCipher(known) {
		c.fail(at, strings.Join(known, ","), "leaves no cipher suite", `begin with suites, or with "ALL"`)
	}
}
