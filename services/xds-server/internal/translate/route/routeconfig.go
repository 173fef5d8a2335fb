package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

const (
	// defaultHTTPPort is the port of requests that name none. Hosts of VirtualServices that have no service exist on
	// this port alone.
	defaultHTTPPort = 80
	// maxWildcardDots bounds the look-ups for one host of a request.
	maxWildcardDots = 16
)

// routeConfig is the RouteConfiguration of one outbound port. It answers for one hostname or domain at a time, without
// looking at the others. So the virtual hosts can be built all together (all) or one by one for VHDS (listed,
// demanded), with the same result.
type routeConfig struct {
	*builder
	r        *input.Reader
	listener sidecarscope.EgressListener
	// known caches the results of has.
	known map[string]bool
}

func newRouteConfig(r *input.Reader, listener sidecarscope.EgressListener) *routeConfig {
	return &routeConfig{builder: newBuilder(r, listener.Port, contract.MeshGateway), r: r, listener: listener, known: map[string]bool{}}
}

// has reports whether there is a virtual host for a hostname: the hostname of a service with an HTTP port of this
// number, or, on port 80, a host of VirtualServices alone.
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
	return (svc == nil || isAlias(svc)) && c.port == defaultHTTPPort && len(c.virtualServicesFor(hostname)) > 0
}

func isAlias(svc *configv1.Service) bool { return svc.GetExternalName() != "" }

// concrete returns the service for requests to a hostname: that of the hostname, or the service that an ExternalName
// refers to. It returns nil if the listener may not reach the service.
func (c *routeConfig) concrete(hostname string) *configv1.Service {
	svc := c.listener.Service(c.r, hostname)
	if isAlias(svc) {
		if svc = c.r.FollowExternalName(hostname); svc != nil {
			return c.listener.Service(c.r, svc.GetHostname())
		}
	}
	return svc
}

// virtualServicesFor lists the VirtualServices for a host that has no service. There are none for a wildcard host that
// covers services: each of these has a virtual host of its own.
func (c *routeConfig) virtualServicesFor(hostname string) []*mesh.VirtualService {
	if strings.HasPrefix(hostname, "*") && c.anyUnder(hostname) {
		return nil
	}
	found := c.r.VirtualServicesOf(contract.MeshGateway, hostname)
	return slices.DeleteFunc(slices.Clone(found), func(vs *mesh.VirtualService) bool {
		return !slices.Contains(vs.Spec.GetHosts(), hostname) || !c.listener.Admits(c.r, vs.Key.Namespace, hostname) || !c.hasRoutes(vs)
	})
}

func (c *routeConfig) anyUnder(wildcard string) bool {
	if c.listener.Implicit {
		return c.r.AnyUnder(wildcard)
	}
	return coversAny(wildcard, c.listener.Services(c.r))
}

// owner returns the hostname whose virtual host has a domain. There is at most one, so no two virtual hosts have the
// same domain, although each is built alone. A hostname itself takes precedence over the short names, addresses and Pod
// names of other hostnames.
func (c *routeConfig) owner(domain string) (hostname string, ok bool) {
	if hostname = bare(domain); resourcename.Authority(hostname) == domain && c.has(hostname) {
		return hostname, true
	}
	if hostname, ok = strings.CutSuffix(domain, "."); ok && c.has(hostname) && len(withFinalDot(hostname)) > 0 {
		return hostname, true
	}
	if hostname, ok = CompleteHostname(c.r, domain); ok && c.has(hostname) {
		return hostname, true
	}
	if ip, err := netip.ParseAddr(bare(domain)); err == nil {
		svc := c.serviceAt(ip.String())
		return svc.GetHostname(), svc != nil
	}
	parent, ok := strings.CutPrefix(domain, "*.")
	if !ok {
		return "", false
	}
	if c.isHeadless(parent) {
		return parent, true
	}
	hostname, ok = CompleteHostname(c.r, parent)
	return hostname, ok && c.isHeadless(hostname)
}

// serviceAt returns the service of the route configuration that clients reach at an address: the oldest service with
// this VIP, or else the oldest with a Pod there.
func (c *routeConfig) serviceAt(address string) *configv1.Service {
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
			continue // the address was allocated, and the client does not know it
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

// domains lists the domains of the virtual host of a hostname for which has is true.
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

// host builds the virtual host of a hostname, or returns nil if there is none. An ExternalName gets the routes of its
// target, unless VirtualServices name the ExternalName itself. The caller sets the domains.
func (c *routeConfig) host(hostname string) (*routev3.VirtualHost, error) {
	if !c.has(hostname) {
		return nil, nil
	}
	var out *routev3.VirtualHost
	var err error
	svc := c.concrete(hostname)
	routed := svc == nil || svc.GetHostname() != hostname && len(c.virtualServicesFor(hostname)) > 0
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

// virtualHostWithoutService builds the virtual host of a host that only VirtualServices have, from the oldest of them
// that has routes for this port and source.
func (c *routeConfig) virtualHostWithoutService(hostname string) (*routev3.VirtualHost, error) {
	host := virtualHost(resourcename.HostPort(hostname, c.port))
	for _, vs := range c.virtualServicesFor(hostname) {
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

// all builds all virtual hosts, sorted by name. It reads the list of all services.
func (c *routeConfig) all() ([]*routev3.VirtualHost, error) {
	hostnames := lists.Map(c.listener.Services(c.r), (*configv1.Service).GetHostname)
	if c.port == defaultHTTPPort {
		for _, vs := range c.r.VirtualServices(contract.MeshGateway) {
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

// matching returns the hostname whose virtual host Envoy would choose for the host of a request, without its port: an
// equal domain, or else the longest wildcard that covers the host. Wildcards with more than maxWildcardDots dots are
// not looked up.
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

// coversAny reports whether a wildcard host covers some of the services.
func coversAny(wildcard string, services []*configv1.Service) bool {
	suffix := strings.TrimPrefix(wildcard, "*")
	return slices.ContainsFunc(services, func(s *configv1.Service) bool { return strings.HasSuffix(s.GetHostname(), suffix) })
}

// httpPorts lists the service's ports of this number that need HTTP routes, each number once; allPorts means every
// number.
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

// service builds the virtual host of a service port. The routes are those of the first VirtualService that has any for
// this port and source, in order of the specificity of its host and then of age; without one, those of the Gateway API
// that are attached to the service; without any, a default route leads to the cluster. b.port must be the port's
// number. The caller sets the domains.
func (b *builder) service(r *input.Reader, svc *configv1.Service, port *configv1.ServicePort) (*routev3.VirtualHost, error) {
	host := virtualHost(resourcename.HostPort(svc.GetHostname(), port.GetNumber()))
	for _, vs := range r.VirtualServicesOf(contract.MeshGateway, svc.GetHostname()) {
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
	if attached := r.ServiceRoutes(svc.GetHostname(), port.GetNumber(), httpKinds...); len(attached) > 0 {
		routes, err := b.attached(lists.Map(attached, func(route *mesh.AttachedRoute) *mesh.HostRoute {
			return &mesh.HostRoute{AttachedRoute: route}
		}))
		if incomplete, ok := errors.AsType[*plan.Incomplete](err); ok {
			return nil, incomplete.Err // as for a VirtualService: the last good version stays
		}
		host.Routes = routes
		return host, err
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
		return nil, fmt.Errorf("service %s/%s: DestinationRule %s/%s: %w", svc.GetNamespace(), svc.GetHostname(), rule.Key.Namespace,
			rule.Key.Name, err)
	}
	host.Routes = []*routev3.Route{route}
	return host, nil
}

func virtualHost(name string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, IncludeRequestAttemptCount: true}
}
