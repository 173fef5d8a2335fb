// Package gateway groups the servers of all Gateways that select a router, and the listeners of the Gateway API that it
// serves, by the port that it listens on (Ports).
// Packages listener and route build from the same answer; package discovery asks AutoPassthroughTo for the clusters of
// AUTO_PASSTHROUGH servers.
package gateway

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Kind is what a port accepts. Servers of different kinds cannot share a port.
type Kind int

// Kinds of ports.
const (
	// HTTP is plaintext HTTP; the servers of a port share a route configuration.
	HTTP Kind = iota + 1
	// TLS servers have a filter chain each, chosen by SNI.
	TLS
	TCP
	// UDP shares no port number with the others: both may be there.
	UDP
)

// Server is one server of one Gateway.
type Server struct {
	Gateway *mesh.Gateway
	Spec    *networking.Server
}

// Name is the Gateway's, "<namespace>/<name>", as VirtualServices name it.
func (s Server) Name() string { return s.Gateway.Key.Namespace + "/" + s.Gateway.Key.Name }

// Number is the port in the Gateway: that of the gateway's Service, which VirtualServices match.
func (s Server) Number() uint32 { return s.Spec.GetPort().GetNumber() }

// Terminates reports whether the server decrypts TLS.
func (s Server) Terminates() bool {
	switch s.Spec.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	default:
		return true
	}
}

// TerminatesHTTP reports whether the server decrypts HTTPS.
func (s Server) TerminatesHTTP() bool {
	return contract.ParseProtocol(s.Spec.GetPort().GetProtocol()) == configv1.Protocol_PROTOCOL_HTTPS && s.Terminates()
}

// IsAutoPassthrough reports whether the server has mode AUTO_PASSTHROUGH: it forwards mesh TLS to the service that the
// SNI names.
func (s Server) IsAutoPassthrough() bool {
	return s.Spec.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH && kind(s.Spec) == TLS
}

// ServedHosts returns the parts of a VirtualService's host that the server serves: for each of its hosts that covers or
// is covered by it, the narrower of the two. There are none if they have nothing in common, or if the server's host is
// reserved for another namespace.
func (s Server) ServedHosts(namespace, host string) []string {
	var out []string
	for _, entry := range s.Spec.GetHosts() {
		pattern := entry
		if from, rest, found := strings.Cut(entry, "/"); found {
			if from == "." {
				from = s.Gateway.Key.Namespace
			}
			if from != "*" && from != namespace {
				continue
			}
			pattern = rest
		}
		if common, ok := Intersect(pattern, host); ok && !slices.Contains(out, common) {
			out = append(out, common)
		}
	}
	return out
}

// Hosts lists the server's hosts without their namespaces.
func (s Server) Hosts() []string {
	out := make([]string, 0, len(s.Spec.GetHosts()))
	for _, entry := range s.Spec.GetHosts() {
		if _, host, found := strings.Cut(entry, "/"); found {
			entry = host
		}
		out = append(out, entry)
	}
	return out
}

// Intersect returns the narrower of two hosts of which one covers the other; either may be a wildcard.
func Intersect(a, b string) (string, bool) {
	switch {
	case strings.EqualFold(a, b):
		return b, true
	case Covers(a, b):
		return b, true
	case Covers(b, a):
		return a, true
	default:
		return "", false
	}
}

// Covers reports whether a wildcard host covers another host, which may be a wildcard.
func Covers(pattern, host string) bool {
	suffix, ok := strings.CutPrefix(strings.ToLower(pattern), "*")
	return ok && strings.HasSuffix(strings.ToLower(strings.TrimPrefix(host, "*")), suffix)
}

// Port is a port that a gateway listens on.
type Port struct {
	// Number is the target port of the gateway's Service; 0 for a unix socket.
	Number uint32
	// Bind is the address to listen on, or "unix://" and the path of a socket.
	Bind string
	Kind Kind
	// Servers are those of Istio's Gateways, Listeners those of the Gateway API, each in order of age.
	Servers   []Server
	Listeners []Listener
	// explicit is the bind address in the Gateway, "" if it is the default.
	explicit string
}

// Route names the route configuration of a server of the port.
func (p Port) Route(s Server) string {
	if p.Kind == HTTP {
		return p.HTTPRoute()
	}
	return resourcename.GatewayHTTPSRouteConfig(s.Number(), s.Spec.GetPort().GetName(), s.Gateway.Key.Name, s.Gateway.Key.Namespace,
		p.explicit)
}

// HTTPRoute names the route configuration of a port of plaintext HTTP.
func (p Port) HTTPRoute() string { return resourcename.GatewayHTTPRouteConfig(p.Number, p.explicit) }

// Name is the name of the port's listener.
func (p Port) Name() string {
	if p.Kind == UDP {
		return resourcename.UDPListener(p.Bind, p.Number)
	}
	return resourcename.Listener(p.Bind, p.Number)
}

const wildcard = "0.0.0.0"

// Ports lists the ports of the class, sorted by number and address, TCP before UDP. The servers of each are in order of
// their Gateways' age; a server is left out if its kind differs from that of older servers on its port. So are
// listeners of the Gateway API, for which Istio's Gateways count as older.
func Ports(r *input.Reader) []Port {
	found := &ports{byName: map[string]*Port{}}
	found.addServers(r)
	found.addListeners(r)
	out := lists.Map(found.order, func(port *Port) Port { return *port })
	slices.SortFunc(out, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Bind, b.Bind), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// ports collects the ports of a class.
type ports struct {
	byName map[string]*Port
	order  []*Port
}

// at returns the port at an address, which is made of the kind if it is new.
func (p *ports) at(bind string, number uint32, kind Kind) *Port {
	made := &Port{Number: number, Bind: bind, Kind: kind}
	if port := p.byName[made.Name()]; port != nil {
		return port
	}
	p.byName[made.Name()] = made
	p.order = append(p.order, made)
	return made
}

func (p *ports) addServers(r *input.Reader) {
	for _, gateway := range r.Gateways() {
		for _, spec := range gateway.Spec.GetServers() {
			server := Server{Gateway: gateway, Spec: spec}
			bind, explicit := spec.GetBind(), spec.GetBind()
			if bind == "" {
				bind = address(r)
			}
			if bind == address(r) {
				explicit = ""
			}
			for _, number := range targetPorts(r.Targets(), server.Number(), false) {
				port := p.at(bind, number, kind(spec))
				if len(port.Servers) == 0 {
					port.explicit = explicit
				}
				if port.Kind == kind(spec) {
					port.Servers = append(port.Servers, server)
				}
			}
		}
	}
}

func kind(spec *networking.Server) Kind {
	p := contract.ParseProtocol(spec.GetPort().GetProtocol())
	switch {
	case contract.IsHTTP(p), p == configv1.Protocol_PROTOCOL_HTTP_PROXY:
		return HTTP
	case contract.IsTLS(p):
		return TLS
	default:
		return TCP
	}
}

// address is the bind address of servers without one: the wildcard, or the gateway's own address if it shares the
// network of its host.
func address(r *input.Reader) string {
	if r.Class().Interception == class.None && len(r.Addresses()) > 0 {
		return r.Addresses()[0]
	}
	return wildcard
}

// AutoPassthroughTo reports whether an AUTO_PASSTHROUGH server of the class leads to a service.
func AutoPassthroughTo(r *input.Reader, svc *configv1.Service) bool {
	if svc == nil || svc.GetMeshExternal() {
		return false
	}
	for _, g := range r.Gateways() {
		for _, spec := range g.Spec.GetServers() {
			server := Server{Gateway: g, Spec: spec}
			if server.IsAutoPassthrough() && slices.Contains(server.ServedHosts(svc.GetNamespace(), svc.GetHostname()), svc.GetHostname()) {
				return true
			}
		}
	}
	return false
}

// targetPorts translates a port of the gateway's Service, of UDP or not, to target ports. A port that no Service of the
// gateway has is its own target port.
func targetPorts(targets []class.Target, number uint32, udp bool) []uint32 {
	var out []uint32
	for _, target := range targets {
		isUDP := target.Protocol == int32(configv1.Protocol_PROTOCOL_UDP)
		if target.Port == number && target.TargetPort != 0 && isUDP == udp {
			out = append(out, target.TargetPort)
		}
	}
	if len(out) == 0 {
		return []uint32{number}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
