package route

import (
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// shortNames lists what a resolver in the proxy's namespace would complete to the hostname: for reviews.default.svc.cluster.local that is
// reviews.default.svc and reviews.default, and reviews within its own namespace.
func shortNames(hostname, namespace, dnsDomain string) []string {
	_, clusterDomain, ok := strings.Cut(dnsDomain, ".svc.")
	if !ok {
		if clusterDomain, ok = strings.CutPrefix(dnsDomain, "svc."); !ok {
			clusterDomain = dnsDomain
		}
	}
	service, ok := strings.CutSuffix(hostname, ".svc."+clusterDomain)
	if !ok || clusterDomain == "" || strings.HasPrefix(service, "*") {
		return nil
	}
	name, serviceNamespace, ok := strings.Cut(service, ".")
	if !ok || strings.Contains(serviceNamespace, ".") {
		return nil
	}
	out := []string{service, service + ".svc"}
	if serviceNamespace == namespace {
		out = append(out, name)
	}
	return out
}

// addresses are the service's VIPs as they appear in :authority; networks do not appear there.
func addresses(svc *configv1.Service) []string {
	var out []string
	for _, address := range slices.Concat(svc.GetAddresses(), svc.GetAutoAddresses()) {
		if ip, err := netip.ParseAddr(address); err == nil && !ip.IsUnspecified() {
			out = append(out, names.Authority(ip.String()))
		}
	}
	return out
}

// claims hands out domains of one route configuration. Envoy refuses the whole configuration if a domain, in whatever case, occurs twice.
type claims map[string]bool

func (c claims) take(domains []string) []string {
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
	// own are the domains nobody else should have; others are conveniences that yield to every own domain.
	own, others []string
}

// assign gives out domains, the candidates' own first, and returns the virtual hosts that have any, sorted by name.
func assign(candidates []candidate) []*routev3.VirtualHost {
	taken := claims{}
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
	slices.SortStableFunc(out, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// withPort adds the port to every domain.
func withPort(domains []string, port uint32) []string {
	out := make([]string, 0, len(domains))
	for _, domain := range domains {
		out = append(out, domain+":"+names.OutboundRoute(port))
	}
	return out
}
