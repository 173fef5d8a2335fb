package route

import (
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// cutServiceHostname splits the hostname of a Kubernetes Service: reviews.default.svc.cluster.local into reviews and
// default.
func cutServiceHostname(hostname, clusterDomain string) (name, namespace string, ok bool) {
	service, ok := strings.CutSuffix(hostname, ".svc."+clusterDomain)
	if !ok || clusterDomain == "" || strings.HasPrefix(service, "*") {
		return "", "", false
	}
	name, namespace, ok = strings.Cut(service, ".")
	return name, namespace, ok && name != "" && namespace != "" && !strings.Contains(namespace, ".")
}

// shortNames lists the names that a resolver completes to the hostname: reviews.default and reviews.default.svc for
// reviews.default.svc.cluster.local, and reviews for clients in its namespace.
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

// CompleteHostname is the inverse of shortNames: the hostname that a resolver in the client's namespace completes a
// name to.
func CompleteHostname(r *input.Reader, name string) (hostname string, ok bool) {
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

// withFinalDot returns the hostname with a final dot, as clients write it to keep resolvers from searching; none for
// addresses and wildcards.
func withFinalDot(hostname string) []string {
	if _, err := netip.ParseAddr(hostname); err == nil || strings.HasPrefix(hostname, "*") {
		return nil
	}
	return []string{hostname + "."}
}

// ownDomains lists the domains that belong to a hostname and to no other.
func ownDomains(hostname string) []string {
	return append([]string{resourcename.Authority(hostname)}, withFinalDot(hostname)...)
}

// otherDomains lists further domains of a hostname: short names, VIPs and names of Pods. If another hostname has one of
// them as its own domain, that hostname gets it. svc is nil for a host without a service.
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

// isCanonical reports whether a hostname can be a domain that is not mistaken for another host's: lower case, addresses
// in canonical form, a wildcard only as the whole first label, no final dot, and not "*", which is the domain of
// fallback. The mesh keeps hostnames in this form.
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

// bare removes the brackets of an IPv6 address.
func bare(domain string) string {
	if inner, ok := strings.CutPrefix(domain, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return domain
}

// takenDomains are the domains that virtual hosts of a route configuration have. Envoy rejects a route configuration in
// which a domain occurs twice, in whatever case.
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

// candidate is a virtual host whose domains are not assigned yet.
type candidate struct {
	host *routev3.VirtualHost
	// own are the domains that belong to this host; others are assigned only if they are nobody's own.
	own, others []string
}

// assignDomains assigns the domains, own ones first, and returns the virtual hosts that have any, sorted by name.
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

// withPort appends the port to every domain.
func withPort(domains []string, port uint32) []string {
	return lists.Map(domains, func(domain string) string { return domain + ":" + resourcename.OutboundRouteConfig(port) })
}
