package route

import (
	"errors"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// gatewayRouteConfig builds a route configuration of a gateway: for all plain HTTP servers and listeners of a port, or
// for one that terminates TLS.
func gatewayRouteConfig(r *input.Reader, name string) (*routev3.RouteConfiguration, error) {
	var hosts gatewayHosts
	var incomplete []error
	found := false
	for _, port := range gateway.Ports(r) {
		for _, server := range port.Servers {
			if port.Kind == gateway.TCP || port.Kind == gateway.TLS && !server.TerminatesHTTP() || port.Route(server) != name {
				continue
			}
			found = true
			if err := hosts.add(r, server, port.Kind == gateway.TLS); err != nil {
				return nil, err
			}
		}
		if c, ok := listenerRoutesOf(r, port, name); ok {
			found = true
			if c.usesVHDS() {
				out := newConfiguration(name)
				out.Vhds = &routev3.Vhds{ConfigSource: coreconfig.ADSWithoutTimeout()}
				out.IgnorePortInHostMatching = true
				return out, nil
			}
			for _, domain := range c.domains() {
				if hosts.byDomain[domain] != nil {
					continue // Istio's Gateway was there before
				}
				host, err := c.host(domain)
				if err != nil {
					incomplete = append(incomplete, err)
				}
				hosts.put(domain, host)
			}
		}
	}
	if !found && gateway.IsRevoked(r, name) {
		// Envoy drains the connections of the listener, and would answer with the last routes until they are closed.
		out := newConfiguration(name)
		out.VirtualHosts = []*routev3.VirtualHost{misdirectedHost("revoked", "*")}
		return out, nil
	}
	if !found {
		return nil, nil
	}
	out := newConfiguration(name)
	out.VirtualHosts = hosts.finish(r)
	// Clients reach a gateway through load balancers and port mappings, so the port in the request's host may differ
	// from the listener's.
	out.IgnorePortInHostMatching = true
	if len(incomplete) > 0 {
		return out, &plan.Incomplete{Err: errors.Join(incomplete...)}
	}
	return out, nil
}

// gatewayHosts collects the virtual hosts of a gateway's route configuration by domain. If several VirtualServices
// route one host, its virtual host has the routes of all, the oldest first.
type gatewayHosts struct {
	byDomain map[string]*routev3.VirtualHost
	domains  []string
	// from has the VirtualService of each route, while the build is traced.
	from map[*routev3.Route]*mesh.VirtualService
}

func (g *gatewayHosts) host(domain string, port uint32) *routev3.VirtualHost {
	host := g.byDomain[domain]
	if host == nil {
		host = virtualHost(resourcename.HostPort(domain, port))
		host.Domains = []string{resourcename.Authority(domain)}
		g.put(domain, host)
	}
	return host
}

func (g *gatewayHosts) put(domain string, host *routev3.VirtualHost) {
	if g.byDomain == nil {
		g.byDomain = map[string]*routev3.VirtualHost{}
	}
	g.byDomain[domain] = host
	g.domains = append(g.domains, domain)
}

func (g *gatewayHosts) add(r *input.Reader, server gateway.Server, secure bool) error {
	b := newBuilder(r, server.Number(), server.Name())
	b.secure = secure
	redirect := server.Spec.GetTls().GetHttpsRedirect() && !secure
	for _, vs := range r.VirtualServices(server.Name()) {
		if len(vs.Spec.GetHttp()) == 0 {
			continue
		}
		var common []string
		for _, hostname := range vs.Spec.GetHosts() {
			for _, domain := range server.ServedHosts(vs.Key.Namespace, hostname) {
				if !slices.Contains(common, domain) {
					common = append(common, domain)
				}
			}
		}
		if len(common) == 0 {
			continue
		}
		routes, err := b.virtualService(vs)
		if err != nil {
			return err
		}
		if r.IsTraced() {
			g.note(routes, vs)
		}
		for _, domain := range common {
			host := g.host(domain, server.Number())
			host.Routes = append(host.Routes, routes...)
			if redirect {
				host.RequireTls = routev3.VirtualHost_ALL
			}
		}
	}
	if redirect {
		for _, domain := range server.Hosts() {
			g.host(domain, server.Number()).RequireTls = routev3.VirtualHost_ALL
		}
	}
	return nil
}

// note remembers the VirtualService of the routes.
func (g *gatewayHosts) note(routes []*routev3.Route, vs *mesh.VirtualService) {
	if g.from == nil {
		g.from = map[*routev3.Route]*mesh.VirtualService{}
	}
	for _, route := range routes {
		g.from[route] = vs
	}
}

// finish returns the virtual hosts sorted by name. Routes that match everything go last, so that they do not hide the
// paths of a younger VirtualService; only the first of them is kept.
func (g *gatewayHosts) finish(r *input.Reader) []*routev3.VirtualHost {
	candidates := make([]candidate, 0, len(g.domains))
	for _, domain := range g.domains {
		host := g.byDomain[domain]
		var specific, general []*routev3.Route
		for _, route := range host.GetRoutes() {
			if matchesEverything(route.GetMatch()) {
				general = append(general, route)
			} else {
				specific = append(specific, route)
			}
		}
		if len(general) > 1 {
			general = general[:1]
		}
		host.Routes = append(specific, general...)
		for _, route := range host.GetRoutes() {
			r.Uses(g.from[route])
		}
		candidates = append(candidates, candidate{host: host, own: host.GetDomains()})
	}
	return assignDomains(candidates)
}
