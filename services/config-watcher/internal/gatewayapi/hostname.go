package gatewayapi

import (
	"cmp"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/routerank"
)

// hostsOf are the domains that a listener and a route with hostnames have in common, sorted; none if they have none. A
// domain that comes of several hostnames has the most specific one's rank.
func hostsOf(listener string, hostnames []gatewayv1.Hostname) []*configv1.AttachedHost {
	own := []gatewayv1.Hostname{""}
	if len(hostnames) > 0 {
		own = hostnames
	}
	out := make([]*configv1.AttachedHost, 0, len(own))
	for _, h := range own {
		hostname := strings.ToLower(string(h))
		if domain, ok := intersect(listener, hostname); ok {
			out = append(out, &configv1.AttachedHost{Domain: domain, Rank: routerank.Host(hostname)})
		}
	}
	slices.SortFunc(out, func(a, b *configv1.AttachedHost) int {
		return cmp.Or(strings.Compare(a.GetDomain(), b.GetDomain()), slices.Compare(a.GetRank(), b.GetRank()))
	})
	return slices.CompactFunc(out, func(a, b *configv1.AttachedHost) bool { return a.GetDomain() == b.GetDomain() })
}

// intersect is what two hostnames have in common; "" stands for any.
func intersect(a, b string) (string, bool) {
	switch {
	case a == b || a == "" || covers(a, b):
		return b, true
	case b == "" || covers(b, a):
		return a, true
	default:
		return "", false
	}
}

// covers reports whether host is below a wildcard. "*.example.com" covers "a.b.example.com" and "*.b.example.com", but
// not "example.com".
func covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && len(host) > len(suffix) && strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
}
