package object

import "strings"

// PartialWildcard reports whether a host such as "*-a.example.com" has a wildcard that is only a part of the first
// label.
func PartialWildcard(host string) bool {
	return strings.HasPrefix(host, "*") && host != "*" && !strings.HasPrefix(host, "*.")
}
