package patch

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	routes "fairlead.dev/services/xds-server/internal/translate/route"
)

// routeConfigs patches a route configuration, its virtual hosts and their routes.
type routeConfigs struct {
	site
	on string
	// built are the virtual hosts before the patches; discovered is true if the route configuration uses VHDS.
	built      []*route.VirtualHost
	discovered bool
	// ports that a patch may match, and the Gateway servers that use the route configuration.
	ports   []uint32
	servers []gateway.Server
}

func newRoutes(s site, m proto.Message) resource {
	built, _ := m.(*route.RouteConfiguration)
	t := &routeConfigs{site: s, on: mesh.Outbound, built: built.GetVirtualHosts(), discovered: built.GetVhds() != nil}
	switch {
	case s.r.Class().Type == class.Router:
		t.on = mesh.Gateways
	case s.name == resourcename.HTTPProxyRouteConfig:
		t.ports = []uint32{uint32(max(s.r.Mesh().GetProxyHttpPort(), 0))}
	default:
		_, port, ok := resourcename.ParseOutboundRouteConfig(s.name)
		if !ok {
			_, port, _ = resourcename.ParseSniffedRouteConfig(s.name)
		}
		t.ports = []uint32{port}
	}
	return t
}

func sideOfRoutes(s site, _ proto.Message) string {
	if s.r.Class().Type == class.Router {
		return mesh.Gateways
	}
	return mesh.Outbound
}

// is reports whether the patch's match admits the route configuration.
func (t *routeConfigs) is(p *mesh.Patch) bool {
	m := p.Spec.GetMatch().GetRouteConfiguration()
	if m == nil {
		return p.Spec.GetMatch().GetObjectTypes() == nil
	}
	if m.GetName() != "" && m.GetName() != t.name {
		return false
	}
	if t.on != mesh.Gateways {
		return m.GetPortNumber() == 0 || slices.Contains(t.ports, m.GetPortNumber()) // portName and gateway are for gateways alone, in Istio too
	}
	if m.GetPortNumber() == 0 && m.GetPortName() == "" && m.GetGateway() == "" {
		return true
	}
	t.findServers()
	return m.GetPortName() == "" && m.GetGateway() == "" && slices.Contains(t.ports, m.GetPortNumber()) ||
		slices.ContainsFunc(t.servers, func(s gateway.Server) bool {
			return (m.GetPortNumber() == 0 || m.GetPortNumber() == s.Number() || slices.Contains(t.ports, m.GetPortNumber())) &&
				(m.GetPortName() == "" || m.GetPortName() == s.Spec.GetPort().GetName()) &&
				(m.GetGateway() == "" || m.GetGateway() == s.Name())
		})
}

func (t *routeConfigs) findServers() {
	if t.servers != nil {
		return
	}
	t.servers = []gateway.Server{}
	for _, port := range gateway.Ports(t.r) {
		for _, server := range port.Servers {
			if port.Route(server) == t.name {
				t.servers, t.ports = append(t.servers, server), append(t.ports, port.Number)
			}
		}
	}
}

func (t *routeConfigs) concerns(p *mesh.Patch) bool {
	switch {
	case p.Spec.GetApplyTo() == networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return t.is(p)
	case addsHost(p):
		return !t.discovered && t.is(p) // among resources it is one
	}
	return slices.ContainsFunc(t.built, func(h *route.VirtualHost) bool { return isHost(p, h.GetName(), h.GetDomains()) }) && t.is(p)
}

func (t *routeConfigs) patch(m proto.Message, patches []*use) (proto.Message, error) {
	out := m.(*route.RouteConfiguration)
	done := routes.WithoutDeadlines(out.GetVirtualHosts())
	here := func(u *use) bool { return t.is(u.Patch) }
	for _, u := range of(patches, networking.EnvoyFilter_ROUTE_CONFIGURATION, here) {
		if isMerge(u.Operation) {
			if err := merge(u, out); err != nil {
				return nil, err
			}
		}
	}
	all := of(patches, networking.EnvoyFilter_VIRTUAL_HOST, here)
	adds := of(all, networking.EnvoyFilter_VIRTUAL_HOST, func(u *use) bool { return u.Operation == networking.EnvoyFilter_Patch_ADD })
	others := of(all, networking.EnvoyFilter_VIRTUAL_HOST, func(u *use) bool { return u.Operation != networking.EnvoyFilter_Patch_ADD })
	hosts := list[*route.VirtualHost]{
		matches: func(u *use, h *route.VirtualHost) bool { return t.isHost(u.Patch, h) },
		selects: func(*use) bool { return false },
		all:     true,
	}
	var err error
	if out.VirtualHosts, err = hosts.edit(out.GetVirtualHosts(), others); err != nil {
		return nil, err
	}
	inHosts := of(patches, networking.EnvoyFilter_HTTP_ROUTE, here)
	for _, h := range out.GetVirtualHosts() {
		mine := of(inHosts, networking.EnvoyFilter_HTTP_ROUTE, func(u *use) bool { return t.isHost(u.Patch, h) })
		if h.Routes, err = httpRoutes.edit(h.GetRoutes(), mine); err != nil {
			return nil, err
		}
	}
	if out.VirtualHosts, err = hosts.edit(out.GetVirtualHosts(), adds); err != nil {
		return nil, err
	}
	done(out.GetVirtualHosts())
	return out, nil
}

// isHost also admits the virtual host of an inbound port by the workload's port number.
func (t *routeConfigs) isHost(p *mesh.Patch, h *route.VirtualHost) bool {
	return isHost(p, h.GetName(), h.GetDomains()) ||
		t.on == mesh.Inbound && len(t.ports) == 1 && isHost(p, resourcename.InboundVirtualHost(t.ports[0]), h.GetDomains())
}

// isHost reports whether the patch's match admits a virtual host.
func isHost(p *mesh.Patch, name string, domains []string) bool {
	m := p.Spec.GetMatch().GetRouteConfiguration().GetVhost()
	return (m.GetName() == "" || m.GetName() == name) && (m.GetDomainName() == "" || slices.Contains(domains, m.GetDomainName()))
}

var httpRoutes = list[*route.Route]{
	matches: func(u *use, r *route.Route) bool {
		m := u.Spec.GetMatch().GetRouteConfiguration().GetVhost().GetRoute()
		if m.GetName() != "" && m.GetName() != r.GetName() {
			return false
		}
		switch m.GetAction() {
		case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE:
			return r.GetRoute() != nil
		case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT:
			return r.GetRedirect() != nil
		case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE:
			return r.GetDirectResponse() != nil
		default:
			return true
		}
	},
	selects: func(u *use) bool {
		m := u.Spec.GetMatch().GetRouteConfiguration().GetVhost().GetRoute()
		return m.GetName() != "" || m.GetAction() != networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ANY
	},
}

// inboundRoutes patches the route configuration inside an inbound listener, in place.
func inboundRoutes(s site, inline *route.RouteConfiguration, patches []*use) error {
	s.name = inline.GetName()
	cluster, _ := resourcename.ParseCluster(s.name)
	t := &routeConfigs{site: s, on: mesh.Inbound, ports: []uint32{cluster.Port}}
	_, err := t.patch(inline, patches)
	return err
}

func (t *routeConfigs) validate(m proto.Message) error {
	return validateRouteConfig(t.name, m.(*route.RouteConfiguration))
}

func addsHost(p *mesh.Patch) bool {
	return p.Spec.GetApplyTo() == networking.EnvoyFilter_VIRTUAL_HOST && p.Operation == networking.EnvoyFilter_Patch_ADD
}

// hosts patches a virtual host that is delivered by VHDS.
type hosts struct {
	*routeConfigs
	// resource is its name, authority the host in that name; routeConfigs has the name of the route configuration.
	resource, authority string
	// known is the name by which patches match it, domains are the domains that it was built with.
	known   string
	domains []string
}

func newHosts(s site, m proto.Message) resource {
	built := m.(*route.VirtualHost)
	h := &hosts{resource: s.name, domains: built.GetDomains()}
	s.name, h.authority, _ = resourcename.ParseOutboundVirtualHost(s.name)
	h.routeConfigs = newRoutes(s, nil).(*routeConfigs)
	h.known = h.authority
	if s.r.Class().OnDemand && len(h.ports) > 0 {
		if hostname, ok := routes.Answers(s.r, s.name, h.authority); ok {
			h.known = resourcename.HostPort(hostname, h.ports[0])
		}
	}
	return h
}

func (h *hosts) concerns(p *mesh.Patch) bool {
	if !h.is(p) {
		return false
	}
	switch {
	case p.Spec.GetApplyTo() == networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return false
	case addsHost(p):
		added := p.Value.(*route.VirtualHost)
		return h.r.Class().OnDemand && h.covered(added) || added.GetName() == h.authority
	default:
		return isHost(p, h.known, h.domains) || isHost(p, h.authority, h.domains)
	}
}

// covered reports whether the virtual host that a patch adds has a domain for the host that an on-demand proxy has
// requested.
func (h *hosts) covered(added *route.VirtualHost) bool {
	asked, _, _ := strings.Cut(h.authority, ":")
	for _, domain := range added.GetDomains() {
		prefix, suffix, wild := strings.Cut(strings.ToLower(domain), "*")
		switch {
		case strings.EqualFold(domain, h.authority) || strings.EqualFold(domain, asked):
			return true
		case wild && strings.HasPrefix(asked, prefix) && strings.HasSuffix(asked, suffix):
			return true
		}
	}
	return false
}

func (h *hosts) patch(m proto.Message, patches []*use) (proto.Message, error) {
	out := m.(*route.VirtualHost)
	done := routes.WithoutDeadlines([]*route.VirtualHost{out})
	for _, u := range of(patches, networking.EnvoyFilter_VIRTUAL_HOST, func(*use) bool { return true }) {
		switch op := u.Operation; {
		case op == networking.EnvoyFilter_Patch_ADD && !h.r.Class().OnDemand:
			return nil, u.errorf("there is a virtual host %q already, give it a name of its own or use MERGE", h.authority)
		case op == networking.EnvoyFilter_Patch_ADD:
			if hostname, taken := routes.Answers(h.r, h.name, h.authority); taken {
				return nil, u.errorf("%q is answered by host %s, take the domain out or patch that virtual host", h.authority, hostname)
			}
			out = proto.CloneOf(u.Value.(*route.VirtualHost))
			out.Name, out.Domains = h.resource, []string{h.authority}
			u.done = true
			return out, nil
		case op == networking.EnvoyFilter_Patch_REMOVE:
			u.done = true
			return h.removed()
		case op == networking.EnvoyFilter_Patch_REPLACE:
			u.done = true
			out = proto.CloneOf(u.Value.(*route.VirtualHost))
			out.Name = h.resource
			if h.r.Class().OnDemand {
				if !h.covered(out) {
					return h.removed()
				}
				out.Domains = slices.Clone(h.domains)
			}
		case isMerge(op):
			if err := merge(u, out); err != nil {
				return nil, err
			}
			out.Name = h.resource // a patch that names it does so by what is known
		}
	}
	var err error
	out.Routes, err = httpRoutes.edit(out.GetRoutes(), of(patches, networking.EnvoyFilter_HTTP_ROUTE, func(*use) bool { return true }))
	done([]*route.VirtualHost{out})
	return out, err
}

// nobody is a host that does not exist.
const nobody = "nobody.invalid"

// removed returns nil, or for an on-demand proxy the virtual host for unknown hosts, because the proxy waits for an
// answer.
func (h *hosts) removed() (proto.Message, error) {
	if !h.r.Class().OnDemand {
		return nil, nil
	}
	m, err := h.inner.Build(h.r, resourcename.OutboundVirtualHost(h.name, nobody))
	if m == nil || err != nil {
		return nil, err
	}
	out := proto.CloneOf(m.(*route.VirtualHost))
	out.Name, out.Domains = h.resource, []string{h.authority}
	return out, nil
}

func (h *hosts) validate(m proto.Message) error {
	return validateVirtualHost(h.resource, m.(*route.VirtualHost), h.domains)
}
