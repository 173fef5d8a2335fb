package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

const (
	// defaultHTTPPort is where HTTP clients connect that name no port. Hosts of VirtualServices that are no service exist on it alone.
	defaultHTTPPort = 80
	// maxWildcardDots bounds what is looked up for one host that a client has made up.
	maxWildcardDots = 16
)

// table is the route table of one outbound port. Which hosts it has, and whose a domain is, it answers for one host or domain at a time and
// without looking at the others, so that a table can be given out whole or host by host.
type routeConfig struct {
	*builder
	r        *input.Reader
	listener sidecarscope.EgressListener
	// known are answers of has, which is asked for the same few hostnames again and again.
	known map[string]bool
}

func newRouteConfig(r *input.Reader, listener sidecarscope.EgressListener) *routeConfig {
	return &routeConfig{builder: newBuilder(r, listener.Port, MeshGateway), r: r, listener: listener, known: map[string]bool{}}
}

// has tells whether the table has a virtual host for a hostname: of a service with such an HTTP port, or on port 80 of VirtualServices.
func (c *routeConfig) has(hostname string) bool {
	found, ok := c.known[hostname]
	if !ok {
		found = isCanonical(hostname) && c.lookUp(hostname)
		c.known[hostname] = found
	}
	return found
}

func (c *routeConfig) lookUp(hostname string) bool {
	if svc := c.concrete(hostname); svc != nil && len(httpPorts(svc, c.port)) > 0 {
		return true
	}
	svc := c.listener.Service(c.r, hostname)
	return (svc == nil || isAlias(svc)) && c.port == defaultHTTPPort && len(c.routing(hostname)) > 0
}

func isAlias(svc *configv1.Service) bool { return svc.GetExternalName() != "" }

// concrete returns the service that requests to a hostname are for: that of the hostname, or the one it is an ExternalName of; nil if the
// listener does not reach it.
func (c *routeConfig) concrete(hostname string) *configv1.Service {
	svc := c.listener.Service(c.r, hostname)
	if isAlias(svc) {
		if svc = c.r.Concrete(hostname); svc != nil {
			return c.listener.Service(c.r, svc.GetHostname())
		}
	}
	return svc
}

// routing lists the VirtualServices that route a host which is no service. A wildcard host that is about services has none: they are
// routed one by one.
func (c *routeConfig) routing(hostname string) []*mesh.VirtualService {
	if strings.HasPrefix(hostname, "*") && c.anyUnder(hostname) {
		return nil
	}
	found := c.r.VirtualServicesOf(MeshGateway, hostname)
	return slices.DeleteFunc(slices.Clone(found), func(vs *mesh.VirtualService) bool {
		return !slices.Contains(vs.Spec.GetHosts(), hostname) || !c.listener.Admits(c.r, vs.Key.Namespace, hostname) || !c.speaks(vs)
	})
}

func (c *routeConfig) anyUnder(wildcard string) bool {
	if c.listener.Implicit {
		return c.r.AnyUnder(wildcard)
	}
	return coversAny(wildcard, c.listener.Services(c.r))
}

// owner returns the hostname of the virtual host that a domain belongs to. There is one at most, so no two virtual hosts of a table claim the
// same domain, though each is built alone: hosts' own names come first, then what they are called for convenience.
func (c *routeConfig) owner(domain string) (hostname string, ok bool) {
	if hostname = bare(domain); resourcename.Authority(hostname) == domain && c.has(hostname) {
		return hostname, true
	}
	if hostname, ok = strings.CutSuffix(domain, "."); ok && c.has(hostname) && len(withFinalDot(hostname)) > 0 {
		return hostname, true
	}
	if hostname, ok = completeHostname(c.r, domain); ok && c.has(hostname) {
		return hostname, true
	}
	if ip, err := netip.ParseAddr(bare(domain)); err == nil {
		svc := c.at(ip.String())
		return svc.GetHostname(), svc != nil
	}
	parent, ok := strings.CutPrefix(domain, "*.")
	if !ok {
		return "", false
	}
	if c.isHeadless(parent) {
		return parent, true
	}
	hostname, ok = completeHostname(c.r, parent)
	return hostname, ok && c.isHeadless(hostname)
}

// at returns the service of the table that clients of an address reach: the oldest of those with this VIP, or else of those with this Pod.
func (c *routeConfig) at(address string) *configv1.Service {
	var best *configv1.Service
	wins := func(svc *configv1.Service) bool {
		if best == nil {
			return true
		}
		if vip := c.hasVIP(svc, address); vip != c.hasVIP(best, address) {
			return vip
		}
		if c := svc.GetCreationTime().AsTime().Compare(best.GetCreationTime().AsTime()); c != 0 {
			return c < 0
		}
		return svc.GetHostname() < best.GetHostname()
	}
	for _, svc := range c.r.ServicesAt(c.port, address, protocol.WithRoutes...) {
		if !svc.GetHeadless() && !c.hasVIP(svc, address) {
			continue // allocated, and the client does not know it
		}
		if c.has(svc.GetHostname()) && c.listener.Service(c.r, svc.GetHostname()) == svc && wins(svc) {
			best = svc
		}
	}
	return best
}

func (c *routeConfig) hasVIP(svc *configv1.Service, address string) bool {
	return slices.Contains(c.r.VIPs(svc), address)
}

func (c *routeConfig) isHeadless(hostname string) bool {
	return c.has(hostname) && !strings.HasPrefix(hostname, "*") && c.listener.Service(c.r, hostname).GetHeadless()
}

// domains lists what the virtual host of a hostname that the table has is called.
func (c *routeConfig) domains(hostname string) []string {
	var out []string
	add := func(domains []string) {
		for _, domain := range domains {
			if owner, _ := c.owner(domain); owner == hostname && !slices.Contains(out, domain) {
				out = append(out, domain)
			}
		}
	}
	add(ownDomains(hostname))
	add(otherDomains(c.r, hostname, c.listener.Service(c.r, hostname)))
	return out
}

// host builds the virtual host of a hostname; nil if the table has none. An alias is routed as what it stands for, unless VirtualServices name
// the alias itself. Its domains are left to the caller.
func (c *routeConfig) host(hostname string) (*routev3.VirtualHost, error) {
	if !c.has(hostname) {
		return nil, nil
	}
	var out *routev3.VirtualHost
	var err error
	svc := c.concrete(hostname)
	routed := svc == nil || svc.GetHostname() != hostname && len(c.routing(hostname)) > 0
	if ports := httpPorts(svc, c.port); !routed && len(ports) > 0 {
		if out, err = c.service(c.r, svc, ports[0]); out != nil {
			out.Name = resourcename.HostPort(hostname, c.port)
		}
	} else {
		out, err = c.virtualHostWithoutService(hostname)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// virtualHostWithoutService builds the virtual host of a host that only VirtualServices have, by the oldest of them.
func (c *routeConfig) virtualHostWithoutService(hostname string) (*routev3.VirtualHost, error) {
	host := virtualHost(resourcename.HostPort(hostname, c.port))
	for _, vs := range c.routing(hostname) {
		routes, err := c.virtualService(vs)
		if err != nil {
			return nil, err
		}
		if len(routes) > 0 {
			host.Routes = routes
			c.r.Uses(vs)
			break
		}
	}
	return host, nil
}

// all builds the virtual hosts of the whole table, sorted by name. It lists all services.
func (c *routeConfig) all() ([]*routev3.VirtualHost, error) {
	var hostnames []string
	for _, svc := range c.listener.Services(c.r) {
		hostnames = append(hostnames, svc.GetHostname())
	}
	if c.port == defaultHTTPPort {
		for _, vs := range c.r.VirtualServices(MeshGateway) {
			hostnames = append(hostnames, vs.Spec.GetHosts()...)
		}
	}
	slices.Sort(hostnames)
	var out []*routev3.VirtualHost
	for _, hostname := range slices.Compact(hostnames) {
		host, err := c.host(hostname)
		if err != nil {
			return nil, err
		}
		if host != nil {
			host.Domains = c.domains(hostname)
			out = append(out, host)
		}
	}
	sortHosts(out)
	return out, nil
}

// matching finds the virtual host for a request's host, without its port, as the proxy does with a whole table: a domain that is equal, or
// else the longest wildcard that covers it; wildcards with more than maxWildcardDots dots are not looked for.
func (c *routeConfig) matching(host string) (hostname string, ok bool) {
	if hostname, ok = c.owner(host); ok {
		return hostname, true
	}
	if _, err := netip.ParseAddr(bare(host)); err == nil {
		return "", false
	}
	for domain := range mesh.Covering(host) {
		if domain == host || domain == "*" || strings.Count(domain, ".") > maxWildcardDots {
			continue
		}
		if hostname, ok = c.owner(domain); ok {
			return hostname, true
		}
	}
	return "", false
}

// coversAny tells whether a wildcard host is about some of the services.
func coversAny(wildcard string, services []*configv1.Service) bool {
	suffix := strings.TrimPrefix(wildcard, "*")
	return slices.ContainsFunc(services, func(s *configv1.Service) bool { return strings.HasSuffix(s.GetHostname(), suffix) })
}

// httpPorts lists the service's ports of the number that need routes, each number once; allPorts stands for every number.
func httpPorts(svc *configv1.Service, number uint32) []*configv1.ServicePort {
	var out []*configv1.ServicePort
	for _, port := range svc.GetPorts() {
		if (number == allPorts || port.GetNumber() == number) && protocol.MayBeHTTP(port.GetProtocol()) &&
			!slices.ContainsFunc(out, func(p *configv1.ServicePort) bool { return p.GetNumber() == port.GetNumber() }) {
			out = append(out, port)
		}
	}
	return out
}

// service builds the virtual host of a service port: by the first VirtualService that says something about this port and source, in order of
// how specific its host is and then of age, or straight to the cluster. b.port must be the port's number. Domains are left to the caller.
func (b *builder) service(r *input.Reader, svc *configv1.Service, port *configv1.ServicePort) (*routev3.VirtualHost, error) {
	host := virtualHost(resourcename.HostPort(svc.GetHostname(), port.GetNumber()))
	for _, vs := range r.VirtualServicesOf(MeshGateway, svc.GetHostname()) {
		routes, err := b.virtualService(vs)
		if err != nil {
			return nil, err
		}
		if len(routes) > 0 {
			host.Routes = routes
			r.Uses(vs)
			return host, nil
		}
	}
	var hash *routev3.RouteAction_HashPolicy
	rule := r.DestinationRule(svc.GetHostname())
	applied := &networking.TrafficPolicy{}
	if rule != nil {
		applied = trafficpolicy.For(rule.Spec, nil, port.GetNumber())
	}
	hash = hashPolicy(trafficpolicy.ConsistentHash(trafficpolicy.WithAffinity(applied, svc)))
	route := defaultRoute(
		resourcename.OutboundCluster(port.GetNumber(), "", svc.GetHostname()),
		resourcename.HostPort(svc.GetHostname(), port.GetNumber())+"/*",
		retryPolicy(b.mesh.GetDefaultHttpRetryPolicy(), hash != nil),
		hash,
	)
	if err := validate(route); err != nil {
		if hash == nil || rule == nil {
			return nil, fmt.Errorf("service %s/%s: MeshConfig: %w", svc.GetNamespace(), svc.GetHostname(), err)
		}
		return nil, fmt.Errorf("service %s/%s: DestinationRule %s/%s: %w", svc.GetNamespace(), svc.GetHostname(), rule.Key.Namespace, rule.Key.Name, err)
	}
	host.Routes = []*routev3.Route{route}
	return host, nil
}

func virtualHost(name string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, IncludeRequestAttemptCount: true}
}
