package validate

import (
	"slices"
	"strings"
)

// allCiphers stands for every suite in an expression.
const allCiphers = "ALL"

// CipherSuites returns those of a server's cipher suites that proxies are given: what they do not know, and what is
// listed twice, they are not. They would refuse the whole listener for it.
func CipherSuites(list []string) []string {
	var out []string
	for _, s := range list {
		if s != "" && isCipher(s) && !contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// isCipher tells suites and expressions of suites: "-AES128-SHA", "!AES128-SHA" and "+AES128-SHA" take one out of those
// before, for good, or to their end; "[AES128-SHA|AES256-SHA]" are of one rank; "@STRENGTH" sorts.
func isCipher(s string) bool {
	if len(cipherParts(s)) == 0 {
		return s == "@STRENGTH"
	}
	return !slices.ContainsFunc(cipherParts(s), func(part string) bool { return part != allCiphers && !contains(cipherSuites, part) })
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

// anyCipher reports whether a list that has only expressions of isCipher leaves any suite.
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

// ciphers warns of cipher suites that proxies are not given, and refuses expressions that they would refuse.
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
			c.fail(index(at, i), s, "no expression of cipher suites that proxies know", `write a suite such as "AES128-SHA", "-AES128-SHA" to take it out, or "[AES128-SHA|AES256-SHA]" for suites of one rank`)
		}
	}
	if known := CipherSuites(list); len(known) > 0 && !anyCipher(known) {
		c.fail(at, strings.Join(known, ","), "leaves no cipher suite", `begin with suites, or with "ALL"`)
	}
}
