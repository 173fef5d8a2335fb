package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

const (
	// implicitPort is where HTTP clients connect that name no port. Hosts of VirtualServices that are no service exist on it alone.
	implicitPort = 80
	// maxWildcardDots bounds what is looked up for one host that a client has made up.
	maxWildcardDots = 16
)

// table is the route table of one outbound port. Which hosts it has, and whose a domain is, it answers for one host or domain at a time and
// without looking at the others, so that a table can be given out whole or host by host.
type table struct {
	*builder
	r        *input.Reader
	listener scope.Listener
	// known are answers of has, which is asked for the same few hostnames again and again.
	known map[string]bool
}

func newTable(r *input.Reader, listener scope.Listener) *table {
	return &table{builder: newBuilder(r, listener.Port, contract.MeshGateway), r: r, listener: listener, known: map[string]bool{}}
}

// has tells whether the table has a virtual host for a hostname: of a service with such an HTTP port, or on port 80 of VirtualServices.
func (t *table) has(hostname string) bool {
	found, ok := t.known[hostname]
	if !ok {
		found = isCanonical(hostname) && t.lookUp(hostname)
		t.known[hostname] = found
	}
	return found
}

func (t *table) lookUp(hostname string) bool {
	if svc := t.concrete(hostname); svc != nil && len(httpPorts(svc, t.port)) > 0 {
		return true
	}
	svc := t.listener.Service(t.r, hostname)
	return (svc == nil || isAlias(svc)) && t.port == implicitPort && len(t.routing(hostname)) > 0
}

func isAlias(svc *configv1.Service) bool { return svc.GetExternalName() != "" }

// concrete returns the service that requests to a hostname are for: that of the hostname, or the one it is an ExternalName of; nil if the
// listener does not reach it.
func (t *table) concrete(hostname string) *configv1.Service {
	svc := t.listener.Service(t.r, hostname)
	if isAlias(svc) {
		if svc = t.r.Concrete(hostname); svc != nil {
			return t.listener.Service(t.r, svc.GetHostname())
		}
	}
	return svc
}

// routing lists the VirtualServices that route a host which is no service. A wildcard host that is about services has none: they are
// routed one by one.
func (t *table) routing(hostname string) []*mesh.VirtualService {
	if strings.HasPrefix(hostname, "*") && t.anyUnder(hostname) {
		return nil
	}
	found := t.r.VirtualServicesOf(contract.MeshGateway, hostname)
	return slices.DeleteFunc(slices.Clone(found), func(vs *mesh.VirtualService) bool {
		return !slices.Contains(vs.Spec.GetHosts(), hostname) || !t.listener.Admits(t.r, vs.Key.Namespace, hostname) || !t.speaks(vs)
	})
}

func (t *table) anyUnder(wildcard string) bool {
	if t.listener.Implicit {
		return t.r.AnyUnder(wildcard)
	}
	return coversAny(wildcard, t.listener.Services(t.r))
}

// owner returns the hostname of the virtual host that a domain belongs to. There is one at most, so no two virtual hosts of a table claim the
// same domain, though each is built alone: hosts' own names come first, then what they are called for convenience.
func (t *table) owner(domain string) (hostname string, ok bool) {
	if hostname = bare(domain); names.Authority(hostname) == domain && t.has(hostname) {
		return hostname, true
	}
	if hostname, ok = strings.CutSuffix(domain, "."); ok && t.has(hostname) && len(dotted(hostname)) > 0 {
		return hostname, true
	}
	if hostname, ok = completed(t.r, domain); ok && t.has(hostname) {
		return hostname, true
	}
	if ip, err := netip.ParseAddr(bare(domain)); err == nil {
		svc := t.at(ip.String())
		return svc.GetHostname(), svc != nil
	}
	parent, ok := strings.CutPrefix(domain, "*.")
	if !ok {
		return "", false
	}
	if t.isHeadless(parent) {
		return parent, true
	}
	hostname, ok = completed(t.r, parent)
	return hostname, ok && t.isHeadless(hostname)
}

// at returns the service of the table that clients of an address reach: the oldest of those with this VIP, or else of those with this Pod.
func (t *table) at(address string) *configv1.Service {
	var best *configv1.Service
	wins := func(svc *configv1.Service) bool {
		if best == nil {
			return true
		}
		if vip := t.hasVIP(svc, address); vip != t.hasVIP(best, address) {
			return vip
		}
		if c := svc.GetCreationTime().AsTime().Compare(best.GetCreationTime().AsTime()); c != 0 {
			return c < 0
		}
		return svc.GetHostname() < best.GetHostname()
	}
	for _, svc := range t.r.ServicesAt(t.port, address, protocol.WithRoutes...) {
		if !svc.GetHeadless() && !t.hasVIP(svc, address) {
			continue // allocated, and the client does not know it
		}
		if t.has(svc.GetHostname()) && t.listener.Service(t.r, svc.GetHostname()) == svc && wins(svc) {
			best = svc
		}
	}
	return best
}

func (t *table) hasVIP(svc *configv1.Service, address string) bool {
	return slices.Contains(t.r.VIPs(svc), address)
}

func (t *table) isHeadless(hostname string) bool {
	return t.has(hostname) && !strings.HasPrefix(hostname, "*") && t.listener.Service(t.r, hostname).GetHeadless()
}

// domains lists what the virtual host of a hostname that the table has is called.
func (t *table) domains(hostname string) []string {
	var out []string
	add := func(domains []string) {
		for _, domain := range domains {
			if owner, _ := t.owner(domain); owner == hostname && !slices.Contains(out, domain) {
				out = append(out, domain)
			}
		}
	}
	add(ownDomains(hostname))
	add(conveniences(t.r, hostname, t.listener.Service(t.r, hostname)))
	return out
}

// host builds the virtual host of a hostname; nil if the table has none. An alias is routed as what it stands for, unless VirtualServices name
// the alias itself. Its domains are left to the caller.
func (t *table) host(hostname string) (*routev3.VirtualHost, error) {
	if !t.has(hostname) {
		return nil, nil
	}
	var out *routev3.VirtualHost
	var err error
	svc := t.concrete(hostname)
	routed := svc == nil || svc.GetHostname() != hostname && len(t.routing(hostname)) > 0
	if ports := httpPorts(svc, t.port); !routed && len(ports) > 0 {
		if out, err = t.service(t.r, svc, ports[0]); out != nil {
			out.Name = names.HostPort(hostname, t.port)
		}
	} else {
		out, err = t.unregistered(hostname)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// unregistered builds the virtual host of a host that only VirtualServices have, by the oldest of them.
func (t *table) unregistered(hostname string) (*routev3.VirtualHost, error) {
	host := virtualHost(names.HostPort(hostname, t.port))
	for _, vs := range t.routing(hostname) {
		routes, err := t.virtualService(vs)
		if err != nil {
			return nil, err
		}
		if len(routes) > 0 {
			host.Routes = routes
			t.r.Uses(vs)
			break
		}
	}
	return host, nil
}

// all builds the virtual hosts of the whole table, sorted by name. It lists all services.
func (t *table) all() ([]*routev3.VirtualHost, error) {
	var hostnames []string
	for _, svc := range t.listener.Services(t.r) {
		hostnames = append(hostnames, svc.GetHostname())
	}
	if t.port == implicitPort {
		for _, vs := range t.r.VirtualServices(contract.MeshGateway) {
			hostnames = append(hostnames, vs.Spec.GetHosts()...)
		}
	}
	slices.Sort(hostnames)
	var out []*routev3.VirtualHost
	for _, hostname := range slices.Compact(hostnames) {
		host, err := t.host(hostname)
		if err != nil {
			return nil, err
		}
		if host != nil {
			host.Domains = t.domains(hostname)
			out = append(out, host)
		}
	}
	sortHosts(out)
	return out, nil
}

// matching finds the virtual host for a request's host, without its port, as the proxy does with a whole table: a domain that is equal, or
// else the longest wildcard that covers it; wildcards with more than maxWildcardDots dots are not looked for.
func (t *table) matching(host string) (hostname string, ok bool) {
	if hostname, ok = t.owner(host); ok {
		return hostname, true
	}
	if _, err := netip.ParseAddr(bare(host)); err == nil {
		return "", false
	}
	for domain := range mesh.Covering(host) {
		if domain == host || domain == "*" || strings.Count(domain, ".") > maxWildcardDots {
			continue
		}
		if hostname, ok = t.owner(domain); ok {
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
	host := virtualHost(names.HostPort(svc.GetHostname(), port.GetNumber()))
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
	var hash *routev3.RouteAction_HashPolicy
	rule := r.DestinationRule(svc.GetHostname())
	applied := &networking.TrafficPolicy{}
	if rule != nil {
		applied = policy.For(rule.Spec, nil, port.GetNumber())
	}
	hash = hashPolicy(policy.ConsistentHash(policy.WithAffinity(applied, svc)))
	route := plain(
		names.Outbound(port.GetNumber(), "", svc.GetHostname()),
		names.HostPort(svc.GetHostname(), port.GetNumber())+"/*",
		retries(b.mesh.GetDefaultHttpRetryPolicy(), hash != nil),
		hash,
	)
	if err := check(route); err != nil {
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
