package route

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

// VirtualHosts makes the virtual hosts that are resources of their own (VHDS): those of a sidecar's outbound ports. They are called
// "<route configuration>/<hostname>:<port>", or on demand "<route configuration>/<host as the client wrote it>".
type VirtualHosts struct{}

// TypeURL of the resources.
func (VirtualHosts) TypeURL() string { return resourcev3.VirtualHostType }

// Traits of the type are the usual ones.
func (VirtualHosts) Traits() plan.Traits { return plan.Traits{} }

// Names is nil: virtual hosts come from hosts alone.
func (VirtualHosts) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames lists the virtual hosts of a host, one per port; on demand proxies ask for theirs.
func (VirtualHosts) HostNames(r *input.Reader, host string) ([]string, error) {
	if !r.Class().VirtualHosts || r.Class().OnDemand {
		return nil, nil
	}
	ports := []uint32{implicitPort}
	for _, port := range httpPorts(r.Concrete(host), allPorts) {
		ports = append(ports, port.GetNumber())
	}
	slices.Sort(ports)
	var out []string
	for _, port := range slices.Compact(ports) {
		if t, ok := discovered(r, names.OutboundRoute(port)); ok && t.has(host) {
			out = append(out, names.OutboundVirtualHost(names.OutboundRoute(port), names.HostPort(host, port)))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Build makes one virtual host.
func (VirtualHosts) Build(r *input.Reader, name string) (proto.Message, error) {
	route, authority, ok := names.ParseOutboundVirtualHost(name)
	if !ok || !r.Class().VirtualHosts {
		return nil, nil
	}
	t, ok := discovered(r, route)
	if !ok {
		return nil, nil
	}
	var out *routev3.VirtualHost
	var err error
	if r.Class().OnDemand {
		out, err = t.demanded(authority)
	} else {
		out, err = t.listed(authority)
	}
	if out == nil || err != nil {
		return nil, err
	}
	out.Name = name
	applyHeaders(r, out)
	return out, nil
}

// discovered returns the table of a route configuration whose virtual hosts are resources of their own; ok is false for all others.
func discovered(r *input.Reader, route string) (t *table, ok bool) {
	listener, ok := scope.ForRoute(r, route)
	if !ok || !isDiscovered(r, listener) {
		return nil, false
	}
	return newTable(r, listener), true
}

// listed builds the virtual host that HostNames lists for a host and port.
func (t *table) listed(hostPort string) (*routev3.VirtualHost, error) {
	hostname := bare(withoutPort(hostPort))
	if names.HostPort(hostname, t.port) != hostPort {
		return nil, nil
	}
	out, err := t.host(hostname)
	if out == nil || err != nil {
		return nil, err
	}
	out.Domains = t.domains(hostname)
	return out, nil
}

// demanded builds the virtual host for a request's host, which nobody may have: then it answers as the policy for unknown destinations says,
// so that a host which appears, goes or comes back is an update of the same virtual host. It is nil for what is no host at all.
func (t *table) demanded(authority string) (*routev3.VirtualHost, error) {
	if !isAuthority(authority) {
		return nil, nil
	}
	var out *routev3.VirtualHost
	if hostname, ok := t.matching(withoutPort(strings.ToLower(authority))); ok {
		var err error
		if out, err = t.host(hostname); err != nil {
			return nil, err
		}
	}
	if out == nil {
		out = virtualHost("")
		out.Routes = unknown(t.r)
	}
	out.Domains = []string{authority}
	for _, found := range out.GetRoutes() {
		// What has found its route may be idle as long as it likes, unlike what still waits for one.
		if action := found.GetRoute(); action != nil && action.GetIdleTimeout() == nil {
			action.IdleTimeout = durationpb.New(0)
		}
	}
	return out, nil
}

// maxAuthority is the longest name that DNS knows; with a port there are six more.
const maxAuthority = 255

// isAuthority refuses what no server would take for a host, and what the proxy would not take for one but for a pattern: a client that asks
// for "*.com" must not become the owner of all names under it.
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

// withoutPort takes the port off a request's host as the proxy does.
func withoutPort(authority string) string {
	i := strings.LastIndexByte(authority, ':')
	if i < 0 || i < strings.LastIndexByte(authority, ']') {
		return authority
	}
	return authority[:i]
}

// Owner returns the hostname of the virtual host that has a domain in a route configuration whose virtual hosts are resources of their own;
// ok is false if none has it.
func Owner(r *input.Reader, route, domain string) (hostname string, ok bool) {
	t, ok := discovered(r, route)
	if !ok {
		return "", false
	}
	return t.owner(strings.ToLower(domain))
}

// Answers returns the hostname of the virtual host that answers a request there, by the request's host with or without a port; ok is false
// if none does.
func Answers(r *input.Reader, route, authority string) (hostname string, ok bool) {
	t, ok := discovered(r, route)
	if !ok {
		return "", false
	}
	return t.matching(withoutPort(strings.ToLower(authority)))
}
