package route

import (
	"errors"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// VirtualHosts builds virtual hosts for VHDS: those of a sidecar's outbound ports, and of a gateway's listeners of the
// Gateway API. Their names are "<route configuration>/<hostname>:<port>", or for on-demand proxies "<route
// configuration>/<host as the client wrote it>".
type VirtualHosts struct{}

// TypeURL implements plan.Translator.
func (VirtualHosts) TypeURL() string { return resourcev3.VirtualHostType }

// Traits of the type are the usual ones.
func (VirtualHosts) Traits() plan.Traits { return plan.Traits{} }

// Names lists the virtual hosts that a gateway has whatever routes there are. All others come from HostNames.
func (VirtualHosts) Names(r *input.Reader) ([]string, error) {
	if r.Class().Type != class.Router || !r.Class().VirtualHosts {
		return nil, nil
	}
	return listenerHostNames(r, listenerRoutes.ownDomains), nil
}

// HostNames lists the virtual hosts of a hostname, one per port, or per listener of a gateway. On-demand proxies
// request theirs by name.
func (VirtualHosts) HostNames(r *input.Reader, host string) ([]string, error) {
	if !r.Class().VirtualHosts || r.Class().OnDemand {
		return nil, nil
	}
	if r.Class().Type == class.Router {
		return listenerHostNames(r, func(c listenerRoutes) []string {
			if c.routes(host) {
				return []string{host}
			}
			return nil
		}), nil
	}
	ports := []uint32{defaultHTTPPort}
	for _, port := range httpPorts(r.FollowExternalName(host), allPorts) {
		ports = append(ports, port.GetNumber())
	}
	slices.Sort(ports)
	var out []string
	for _, port := range slices.Compact(ports) {
		if c, ok := vhdsRouteConfig(r, resourcename.OutboundRouteConfig(port)); ok && c.has(host) {
			out = append(out, resourcename.OutboundVirtualHost(resourcename.OutboundRouteConfig(port), resourcename.HostPort(host, port)))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Build implements plan.Translator.
func (VirtualHosts) Build(r *input.Reader, name string) (proto.Message, error) {
	route, authority, ok := resourcename.ParseOutboundVirtualHost(name)
	if !ok || !r.Class().VirtualHosts {
		return nil, nil
	}
	var out *routev3.VirtualHost
	var err error
	if r.Class().Type == class.Router {
		out, err = listenerHost(r, route, authority)
	} else if c, ok := vhdsRouteConfig(r, route); !ok {
		return nil, nil
	} else if r.Class().OnDemand {
		out, err = c.onDemand(authority)
	} else {
		out, err = c.listed(authority)
	}
	if _, incomplete := errors.AsType[*plan.Incomplete](err); out == nil || err != nil && !incomplete {
		return nil, err
	}
	out.Name = name
	applyProxyHeaders(r, out)
	return out, err
}

// vhdsRouteConfig returns the route configuration of a name if its virtual hosts are delivered by VHDS.
func vhdsRouteConfig(r *input.Reader, route string) (c *routeConfig, ok bool) {
	listener, ok := sidecarscope.ForRouteConfig(r, route)
	if !ok || !usesVHDS(r, listener) {
		return nil, false
	}
	return newRouteConfig(r, listener), true
}

// listed builds a virtual host that HostNames lists, by host and port.
func (c *routeConfig) listed(hostPort string) (*routev3.VirtualHost, error) {
	hostname := bare(withoutPort(hostPort))
	if resourcename.HostPort(hostname, c.port) != hostPort {
		return nil, nil
	}
	out, err := c.host(hostname)
	if out == nil || err != nil {
		return nil, err
	}
	out.Domains = c.domains(hostname)
	return out, nil
}

// onDemand builds the virtual host for the host of a request. For a host that nobody has, the virtual host answers by
// outboundTrafficPolicy; when such a host appears, goes or comes back, the proxy gets an update of the same virtual
// host. The result is nil if the text cannot be a host.
func (c *routeConfig) onDemand(authority string) (*routev3.VirtualHost, error) {
	if !isAuthority(authority) {
		return nil, nil
	}
	var out *routev3.VirtualHost
	if hostname, ok := c.matching(withoutPort(strings.ToLower(authority))); ok {
		var err error
		if out, err = c.host(hostname); err != nil {
			return nil, err
		}
	}
	if out == nil {
		out = virtualHost("")
		out.Routes = unknownHostRoutes(c.r)
	}
	out.Domains = []string{authority}
	for _, found := range out.GetRoutes() {
		// The connection manager of an on-demand proxy limits how long a request waits for its virtual host
		// (hcm.virtualHostTimeout). The route lifts the limit, because the request has found one.
		if action := found.GetRoute(); action != nil && action.GetIdleTimeout() == nil {
			action.IdleTimeout = durationpb.New(0)
		}
	}
	return out, nil
}

// maxAuthority is the longest DNS name, in bytes.
const maxAuthority = 255

// isAuthority reports whether a text can be the host of a request. It rejects "*": Envoy would treat such a domain as a
// pattern, and a request for "*.com" would decide the routes of all names under it.
func isAuthority(s string) bool {
	if s == "" || len(s) > maxAuthority {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '*' || c == '/' {
			return false
		}
	}
	return true
}

// withoutPort removes the port of a request's host as Envoy does.
func withoutPort(authority string) string {
	i := strings.LastIndexByte(authority, ':')
	if i < 0 || i < strings.LastIndexByte(authority, ']') {
		return authority
	}
	return authority[:i]
}

// Owner returns the hostname whose virtual host has a domain in a route configuration that uses VHDS. Package patch
// calls it.
func Owner(r *input.Reader, route, domain string) (hostname string, ok bool) {
	c, ok := vhdsRouteConfig(r, route)
	if !ok {
		return "", false
	}
	return c.owner(strings.ToLower(domain))
}

// Answers returns the hostname whose virtual host answers a request in a route configuration that uses VHDS, by the
// request's host with or without a port. Package patch calls it.
func Answers(r *input.Reader, route, authority string) (hostname string, ok bool) {
	c, ok := vhdsRouteConfig(r, route)
	if !ok {
		return "", false
	}
	return c.matching(withoutPort(strings.ToLower(authority)))
}
