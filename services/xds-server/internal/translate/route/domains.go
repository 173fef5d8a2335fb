package route

import (
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// cutServiceHostname takes a Kubernetes service's hostname apart: reviews, default of reviews.default.svc.cluster.local.
func cutServiceHostname(hostname, clusterDomain string) (name, namespace string, ok bool) {
	service, ok := strings.CutSuffix(hostname, ".svc."+clusterDomain)
	if !ok || clusterDomain == "" || strings.HasPrefix(service, "*") {
		return "", "", false
	}
	name, namespace, ok = strings.Cut(service, ".")
	return name, namespace, ok && name != "" && namespace != "" && !strings.Contains(namespace, ".")
}

// shortNames lists what a resolver completes to the hostname: for reviews.default.svc.cluster.local that is reviews.default and
// reviews.default.svc, and reviews within its own namespace.
func shortNames(r *input.Reader, hostname string) []string {
	name, namespace, ok := cutServiceHostname(hostname, r.Class().ClusterDomain)
	if !ok {
		return nil
	}
	out := []string{name + "." + namespace, name + "." + namespace + ".svc"}
	if r.IsOwnNamespace(namespace) {
		out = append(out, name)
	}
	return out
}

// completed is the inverse of shortNames: the one hostname that a resolver in the client's namespace may complete the name to.
func completeHostname(r *input.Reader, name string) (hostname string, ok bool) {
	suffix := ".svc." + r.Class().ClusterDomain
	if suffix == ".svc." || name == "" {
		return "", false
	}
	switch labels := strings.Split(name, "."); {
	case len(labels) == 1:
		hostname = name + "." + r.Namespace() + suffix
	case len(labels) == 2:
		hostname = name + suffix
	case len(labels) == 3 && labels[2] == "svc":
		hostname = labels[0] + "." + labels[1] + suffix
	default:
		return "", false
	}
	_, _, ok = cutServiceHostname(hostname, r.Class().ClusterDomain)
	return hostname, ok
}

// dotted lists the hostname with a dot at its end, which resolvers that are told not to search write; none where it has no such form.
func withFinalDot(hostname string) []string {
	if _, err := netip.ParseAddr(hostname); err == nil || strings.HasPrefix(hostname, "*") {
		return nil
	}
	return []string{hostname + "."}
}

// ownDomains lists what only a host itself may be called.
func ownDomains(hostname string) []string {
	return append([]string{resourcename.Authority(hostname)}, withFinalDot(hostname)...)
}

// otherDomains lists the domains of a host besides its own: they yield to other hosts' own. svc is nil for a host that is no service.
func otherDomains(r *input.Reader, hostname string, svc *configv1.Service) []string {
	short := shortNames(r, hostname)
	out := slices.Clone(short)
	for _, ip := range r.VIPs(svc) {
		out = append(out, resourcename.Authority(ip))
	}
	if svc.GetHeadless() && !strings.HasPrefix(hostname, "*") {
		// The Pods of a StatefulSet: db-0.db.default.svc.cluster.local and its short forms.
		for _, domain := range append([]string{hostname}, short...) {
			out = append(out, "*."+domain)
		}
	}
	return out
}

// isCanonical tells hostnames that can be domains without being mistaken for another host's: in lower case, addresses in their canonical
// form, a wildcard only as the whole first label, without a dot at the end. "*" belongs to the fallback. The mesh holds hostnames in this form.
func isCanonical(hostname string) bool {
	if hostname == "" || hostname == "*" || hostname != strings.ToLower(hostname) ||
		strings.HasSuffix(hostname, ".") || strings.ContainsAny(hostname, "/[") {
		return false
	}
	if ip, err := netip.ParseAddr(hostname); err == nil {
		return ip.String() == hostname
	}
	return !strings.Contains(strings.TrimPrefix(hostname, "*."), "*")
}

// bare takes the brackets off an IPv6 address.
func bare(domain string) string {
	if inner, ok := strings.CutPrefix(domain, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return domain
}

// takenDomains hands out domains of one route configuration. Envoy refuses the whole configuration if a domain, in whatever case, occurs twice.
type takenDomains map[string]bool

func (c takenDomains) take(domains []string) []string {
	var out []string
	for _, domain := range domains {
		if key := strings.ToLower(domain); !c[key] {
			c[key] = true
			out = append(out, domain)
		}
	}
	return out
}

// candidate is a virtual host that has yet to win its domains.
type candidate struct {
	host *routev3.VirtualHost
	// own are the domains nobody else should have; others are otherDomains that yield to every own domain.
	own, others []string
}

// assignDomains gives out domains, the candidates' own first, and returns the virtual hosts that have any, sorted by name.
func assignDomains(candidates []candidate) []*routev3.VirtualHost {
	taken := takenDomains{}
	for _, c := range candidates {
		c.host.Domains = taken.take(c.own)
	}
	var out []*routev3.VirtualHost
	for _, c := range candidates {
		c.host.Domains = append(c.host.Domains, taken.take(c.others)...)
		if len(c.host.GetDomains()) > 0 {
			out = append(out, c.host)
		}
	}
	sortHosts(out)
	return out
}

func sortHosts(hosts []*routev3.VirtualHost) {
	slices.SortStableFunc(hosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
}

// withPort adds the port to every domain.
func withPort(domains []string, port uint32) []string {
	out := make([]string, 0, len(domains))
	for _, domain := range domains {
		out = append(out, domain+":"+resourcename.OutboundRouteConfig(port))
	}
	return out
}
