package route

import (
	"net/http"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// listenerRoutes is the part of a gateway's route configuration that listeners of the Gateway API have: those for HTTP
// of a port, or one for HTTPS. It answers for one domain at a time, without looking at the routes of the others.
type listenerRoutes struct {
	r    *input.Reader
	port gateway.Port
	// only is the listener for HTTPS; nil for HTTP.
	only *gateway.Listener
}

// listenerRoutesOf returns the part of a route configuration that the listeners of a port have; ok is false if they
// have none.
func listenerRoutesOf(r *input.Reader, port gateway.Port, name string) (c listenerRoutes, ok bool) {
	for _, l := range port.Listeners {
		switch {
		case port.Kind == gateway.HTTP && port.ListenerRoute(l) == name:
			return listenerRoutes{r: r, port: port}, true
		case l.TerminatesHTTP() && port.ListenerRoute(l) == name:
			return listenerRoutes{r: r, port: port, only: &l}, true
		}
	}
	return listenerRoutes{}, false
}

// usesVHDS reports whether the virtual hosts are delivered by VHDS: so that a route that changes sends those of its
// hosts alone. It is not so for a route configuration that servers of Istio's Gateways have too, or that EnvoyFilters
// may patch.
func (c listenerRoutes) usesVHDS() bool {
	return c.r.Class().VirtualHosts && (c.only != nil || len(c.port.Servers) == 0) && !c.arePatched(mesh.PatchedRoutes)
}

// name is the name of the virtual host of a domain. It stays when the domain moves from one listener for HTTP to
// another.
func (c listenerRoutes) name(domain string) string {
	return resourcename.HostPort(domain, c.port.Number)
}

// listenerHostNames lists, sorted, the virtual hosts of a gateway that are delivered by VHDS, for the domains of each
// route configuration.
func listenerHostNames(r *input.Reader, domains func(listenerRoutes) []string) []string {
	var out []string
	for _, port := range gateway.Ports(r) {
		for i, l := range port.Listeners {
			if port.Kind == gateway.HTTP && i > 0 {
				break // they share a route configuration
			}
			if c, ok := listenerRoutesOf(r, port, port.ListenerRoute(l)); ok && c.usesVHDS() {
				for _, domain := range domains(c) {
					out = append(out, resourcename.OutboundVirtualHost(port.ListenerRoute(l), c.name(domain)))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// listenerHost builds a virtual host that listenerHostNames lists; nil for all others.
func listenerHost(r *input.Reader, routeConfig, name string) (*routev3.VirtualHost, error) {
	for _, port := range gateway.Ports(r) {
		if c, ok := listenerRoutesOf(r, port, routeConfig); ok && c.usesVHDS() {
			if domain := withoutPort(name); c.name(domain) == name {
				return c.host(domain)
			}
		}
	}
	return nil, nil
}

// domains lists, sorted, the domains for which host builds a virtual host. Each occurs once.
func (c listenerRoutes) domains() []string {
	var out []string
	if c.only != nil {
		out = append(c.port.Domains(c.r, *c.only), c.port.Misdirected(*c.only)...)
	} else {
		for _, l := range c.port.Listeners {
			out = append(out, c.port.Domains(c.r, l)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ownDomains lists, sorted, those of domains that do not depend on routes.
func (c listenerRoutes) ownDomains() []string {
	var out []string
	if c.only != nil {
		out = append(c.port.Misdirected(*c.only), c.only.Host())
	} else {
		for _, l := range c.port.Listeners {
			out = append(out, l.Host())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// routes reports whether the domain is one of domains because of routes.
func (c listenerRoutes) routes(domain string) bool {
	l, ok := c.port.ListenerFor(domain)
	return ok && (c.only == nil || l.Reference() == c.only.Reference()) && len(l.Routes(c.r, domain)) > 0
}

// host builds the virtual host of a domain; nil if domains does not list it. Requests that no route matches get 404.
// Those that another HTTPS listener of the port is there for get 421, to gRPC UNAVAILABLE, which clients try again.
func (c listenerRoutes) host(domain string) (*routev3.VirtualHost, error) {
	out := virtualHost(c.name(domain))
	out.Domains = []string{domain}
	l, ok := c.port.ListenerFor(domain)
	if !ok || c.only != nil && l.Reference() != c.only.Reference() {
		if c.only == nil || !slices.Contains(c.port.Misdirected(*c.only), domain) {
			return nil, nil
		}
		return misdirectedHost(c.name(domain), domain), nil
	}
	found := l.Routes(c.r, domain)
	if len(found) == 0 && domain != l.Host() {
		return nil, nil
	}
	b := newBuilder(c.r, l.Spec.GetPort())
	b.secure = c.only != nil
	if !strings.HasPrefix(domain, "*") {
		b.domain = domain
	}
	var err error
	out.Routes, err = b.attached(found)
	c.slim(b, out)
	return out, err
}

// misdirectedHost is the virtual host of requests that have come by the wrong connection.
func misdirectedHost(name, domain string) *routev3.VirtualHost {
	// Envoy makes the status of gRPC from that of HTTP: UNKNOWN from 421, UNAVAILABLE from 503.
	grpc := directResponseRoute("misdirected", http.StatusServiceUnavailable)
	grpc.Match.Grpc = &routev3.RouteMatch_GrpcRouteMatchOptions{}
	out := virtualHost(name)
	out.Domains = []string{domain}
	out.Routes = []*routev3.Route{grpc, directResponseRoute("misdirected", http.StatusMisdirectedRequest)}
	return out
}
