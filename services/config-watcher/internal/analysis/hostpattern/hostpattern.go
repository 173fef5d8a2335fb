// Package hostpattern compares hosts of Istio's API, each of which may be a wildcard: "*" or "*.<suffix>".
package hostpattern

import "strings"

// Narrower is the narrower of two hosts in lower case of which one covers the other; false if they have no name in
// common.
func Narrower(a, b string) (string, bool) {
	covers := func(pattern, host string) bool {
		suffix, wildcard := strings.CutPrefix(pattern, "*")
		return wildcard && strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
	}
	switch {
	case a == b, covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}
