package route

import (
	"net/http"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/input"
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

// host builds the virtual host of a domain; nil if domains does not list it. Requests that no route matches get 404.
// Those that another HTTPS listener of the port is there for get 421.
func (c listenerRoutes) host(domain string) (*routev3.VirtualHost, error) {
	out := virtualHost(resourcename.HostPort(domain, c.port.Number))
	out.Domains = []string{domain}
	l, ok := c.port.ListenerFor(domain)
	if !ok || c.only != nil && l.Reference() != c.only.Reference() {
		if c.only == nil || !slices.Contains(c.port.Misdirected(*c.only), domain) {
			return nil, nil
		}
		out.Routes = []*routev3.Route{directResponseRoute("misdirected", http.StatusMisdirectedRequest)}
		return out, nil
	}
	found := l.Routes(c.r, domain)
	if len(found) == 0 && domain != l.Host() {
		return nil, nil
	}
	b := newBuilder(c.r, l.Spec.GetPort())
	b.secure = c.only != nil
	var err error
	out.Routes, err = b.attached(found)
	return out, err
}
