// Package gateway groups the servers of all Gateways that select a router by the port it has to listen on. Listeners and routes are built
// from the same answer.
package gateway

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Kind says how a port's connections begin; servers of different kinds cannot share a port.
type Kind int

// Kinds of ports.
const (
	// HTTP is plain HTTP: servers share one route configuration.
	HTTP Kind = iota + 1
	// TLS begins with a handshake: servers have a filter chain each, chosen by SNI.
	TLS
	// TCP is opaque.
	TCP
)

// Server is one server of one Gateway.
type Server struct {
	Gateway *mesh.Gateway
	Spec    *networking.Server
}

// Name is the Gateway's, as VirtualServices name it.
func (s Server) Name() string { return s.Gateway.Key.Namespace + "/" + s.Gateway.Key.Name }

// Number is the port as the user wrote it, which is the gateway Service's and what VirtualServices match.
func (s Server) Number() uint32 { return s.Spec.GetPort().GetNumber() }

// Terminates tells servers that decrypt.
func (s Server) Terminates() bool {
	switch s.Spec.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	default:
		return true
	}
}

// TerminatesHTTP tells servers that decrypt and serve HTTP.
func (s Server) TerminatesHTTP() bool {
	return protocol.Parse(s.Spec.GetPort().GetProtocol()) == configv1.Protocol_PROTOCOL_HTTPS && s.Terminates()
}

// PassesMesh tells servers of mode AUTO_PASSTHROUGH: mesh TLS goes on to the service that its server name stands for.
func (s Server) PassesMesh() bool {
	return s.Spec.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH && kind(s.Spec) == TLS
}

// Admits returns which parts of a VirtualService's host the server serves: with each of its hosts the narrower of the two, where one covers
// the other. None means that they have nothing in common, or that the server's host is reserved for another namespace.
func (s Server) Admits(namespace, host string) []string {
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

// Covers tells whether a wildcard host covers another host, which may be a wildcard, too.
func Covers(pattern, host string) bool {
	suffix, ok := strings.CutPrefix(strings.ToLower(pattern), "*")
	return ok && strings.HasSuffix(strings.ToLower(strings.TrimPrefix(host, "*")), suffix)
}

// Port is one port a router listens on.
type Port struct {
	// Number to listen on: the target port of the gateway's Service. It is 0 for a unix socket.
	Number uint32
	// Bind is the address to listen on, or a unix socket as the user wrote it, "unix:///path".
	Bind    string
	Kind    Kind
	Servers []Server
	// explicit is the bind that the servers ask for, "" if it is what all have.
	explicit string
}

// Route names the route configuration of one of the port's servers.
func (p Port) Route(s Server) string {
	if p.Kind == HTTP {
		return resourcename.GatewayHTTPRouteConfig(p.Number, p.explicit)
	}
	return resourcename.GatewayHTTPSRouteConfig(s.Number(), s.Spec.GetPort().GetName(), s.Gateway.Key.Name, s.Gateway.Key.Namespace, p.explicit)
}

const wildcard = "0.0.0.0"

// Ports lists the ports of the class, sorted by number and address; the servers of each are in order of their Gateways' age. A server whose
// kind is not that of older servers on its port is left out.
func Ports(r *input.Reader) []Port {
	byPlace := map[string]*Port{}
	var order []*Port
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
			for _, number := range targetPorts(r.Targets(), server.Number()) {
				place := resourcename.Listener(bind, number)
				port := byPlace[place]
				if port == nil {
					port = &Port{Number: number, Bind: bind, Kind: kind(spec), explicit: explicit}
					byPlace[place] = port
					order = append(order, port)
				}
				if port.Kind == kind(spec) {
					port.Servers = append(port.Servers, server)
				}
			}
		}
	}
	out := make([]Port, 0, len(order))
	for _, port := range order {
		out = append(out, *port)
	}
	slices.SortFunc(out, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Bind, b.Bind))
	})
	return out
}

func kind(spec *networking.Server) Kind {
	p := protocol.Parse(spec.GetPort().GetProtocol())
	switch {
	case protocol.IsHTTP(p), p == configv1.Protocol_PROTOCOL_HTTP_PROXY:
		return HTTP
	case protocol.IsTLS(p):
		return TLS
	default:
		return TCP
	}
}

// address is where servers without a bind listen: everywhere, or on the router's own address if nothing gives it a network of its own.
func address(r *input.Reader) string {
	if r.Class().Interception == class.None && len(r.Addresses()) > 0 {
		return r.Addresses()[0]
	}
	return wildcard
}

// PassesMeshTo reports whether a server of mode AUTO_PASSTHROUGH of the router leads to a service.
func PassesMeshTo(r *input.Reader, svc *configv1.Service) bool {
	if svc == nil || svc.GetMeshExternal() {
		return false
	}
	for _, g := range r.Gateways() {
		for _, spec := range g.Spec.GetServers() {
			server := Server{Gateway: g, Spec: spec}
			if server.PassesMesh() && slices.Contains(server.Admits(svc.GetNamespace(), svc.GetHostname()), svc.GetHostname()) {
				return true
			}
		}
	}
	return false
}

// targetPorts translates a port of the gateway's Service to the workload's. A port that no Service of the gateway has is bound as it is.
func targetPorts(targets []class.Target, number uint32) []uint32 {
	var out []uint32
	for _, target := range targets {
		if target.Port == number && target.TargetPort != 0 {
			out = append(out, target.TargetPort)
		}
	}
	if len(out) == 0 {
		return []uint32{number}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
