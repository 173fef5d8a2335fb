// Package scope says which outbound listeners a sidecar has by its Sidecar resource, and which services each of them may reach. Listeners
// and routes are built from the same answer, so that no listener asks for a route configuration that does not exist.
package scope

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
)

const (
	loopback = "127.0.0.1"
	wildcard = "0.0.0.0"
)

// Listener is an outbound listener as far as routing is concerned.
type Listener struct {
	// Port is the port that callers address; 0 for a forward proxy, which serves every port.
	Port uint32
	// Implicit is true for a listener that no user has given a port: there may be one for every port that services have.
	Implicit bool
	// egress is the Sidecar's listener; nil where no Sidecar limits what is reached.
	egress *networking.IstioEgressListener
}

// Services lists the services that may be reached, sorted by hostname: as many as the class may address.
func (l Listener) Services(r *input.Reader) []*configv1.Service {
	if l.egress == nil {
		return r.Services()
	}
	return r.EgressServices(l.egress)
}

// Service returns the service of a hostname that may be reached, nil if there is none.
func (l Listener) Service(r *input.Reader, hostname string) *configv1.Service {
	svc := r.Service(hostname)
	if svc == nil || l.egress != nil && !r.Admits(l.egress, svc) {
		return nil
	}
	return svc
}

// Speaks tells whether a service that may be reached on the listener's port declares one of the protocols there.
func (l Listener) Speaks(r *input.Reader, protocols ...configv1.Protocol) bool {
	return l.Port != 0 && r.Speaks(l.egress, l.Port, protocols...)
}

// Admits tells whether the listener imports a host that is no service, from a VirtualService of the namespace.
func (l Listener) Admits(r *input.Reader, namespace, hostname string) bool {
	return r.AdmitsHost(l.egress, namespace, hostname)
}

// Explicit is an egress listener of the Sidecar that names a port.
type Explicit struct {
	Egress   *networking.IstioEgressListener
	Port     uint32
	Protocol configv1.Protocol
	// Bind is the address, or "unix://" and the path of a socket; empty for the wildcard of a captured listener.
	Bind string
	// BindToPort is true if the proxy listens there itself, rather than being handed captured connections.
	BindToPort bool
	// OnLoopback tells that the listener is bound to the host's own address, too.
	OnLoopback bool
	// Route names the listener's route configuration.
	Route string
}

// ExplicitListeners lists the Sidecar's egress listeners that name a port or a unix socket, in the Sidecar's order. A socket may serve every
// port: then callers say which, as with a forward proxy.
func ExplicitListeners(r *input.Reader) []Explicit {
	var out []Explicit
	for _, egress := range r.EgressListeners() {
		e := Explicit{
			Egress: egress, Port: egress.GetPort().GetNumber(), Protocol: protocol.Parse(egress.GetPort().GetProtocol()),
			Bind: egress.GetBind(), BindToPort: bindsToPort(egress.GetCaptureMode(), r.Class().Interception),
		}
		same := func(o Explicit) bool { return o.Bind == e.Bind && (o.Port == e.Port || e.OnSocket()) }
		switch {
		case !protocol.IsProxied(e.Protocol):
			continue
		case e.OnSocket():
			e.BindToPort, e.Route = true, e.Bind
		case e.Port == 0:
			continue
		default:
			if e.BindToPort && e.Bind == "" {
				e.Bind = loopback
			}
			if e.Bind == wildcard && e.BindToPort && r.Class().Interception != class.None && len(r.Addresses()) > 0 {
				// The listener on all addresses is that of redirected traffic.
				e.Bind, e.OnLoopback = r.Addresses()[0], !bindsLoopback(r, e.Port)
			}
			e.Route = names.OutboundRoute(e.Port)
			if slices.ContainsFunc(out, func(o Explicit) bool { return o.Route == e.Route }) {
				e.Route = names.BoundOutboundRoute(e.Bind, e.Port)
			}
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, e)
		}
	}
	return out
}

// bindsLoopback tells whether an egress listener of the Sidecar is bound to the host's own address and the port.
func bindsLoopback(r *input.Reader, port uint32) bool {
	return slices.ContainsFunc(r.EgressListeners(), func(l *networking.IstioEgressListener) bool {
		return l.GetPort().GetNumber() == port && (l.GetBind() == "" || l.GetBind() == loopback) && bindsToPort(l.GetCaptureMode(), r.Class().Interception)
	})
}

// OnLoopback tells whether a listener of the Sidecar that stands for all addresses of a port may be bound to the host's own, too: no egress
// listener is there.
func OnLoopback(r *input.Reader, port uint32) bool {
	return !slices.ContainsFunc(ExplicitListeners(r), func(e Explicit) bool {
		return e.Port == port && e.BindToPort && (e.Bind == loopback || e.OnLoopback)
	})
}

// OnSocket tells a listener on a unix socket.
func (e Explicit) OnSocket() bool { return strings.HasPrefix(e.Bind, UnixSocket) }

// UnixSocket is what the address of a unix socket begins with.
const UnixSocket = "unix://"

// bindsToPort says whether a listener is reached without capture.
func bindsToPort(mode networking.CaptureMode, interception class.Interception) bool {
	if mode == networking.CaptureMode_DEFAULT {
		return interception == class.None
	}
	return mode == networking.CaptureMode_NONE
}

// BindsToPort is bindsToPort for ingress listeners.
func BindsToPort(mode networking.CaptureMode, interception class.Interception) bool {
	return bindsToPort(mode, interception)
}

// ImplicitEgress returns the Sidecar's egress listener without a port, nil where no Sidecar limits what is reached on the services' own
// ports; ok is false if the Sidecar has no such listener.
func ImplicitEgress(r *input.Reader) (l *networking.IstioEgressListener, ok bool) {
	all := r.EgressListeners()
	for _, e := range all {
		if e.GetPort().GetNumber() == 0 && e.GetBind() == "" {
			return e, true
		}
	}
	return nil, len(all) == 0
}

// ImplicitBinds tells whether the services' own ports are listened on by the proxy itself, rather than captured.
func ImplicitBinds(r *input.Reader) bool {
	egress, _ := ImplicitEgress(r)
	return bindsToPort(egress.GetCaptureMode(), r.Class().Interception)
}

// Unknown names the cluster of traffic to destinations that nobody knows: the black hole, the destination itself, or the egress proxy of the
// Sidecar, whose policy stands above the mesh's.
func Unknown(r *input.Reader) string {
	sidecar := r.Sidecar()
	if sidecar == nil || sidecar.Spec.GetOutboundTrafficPolicy() == nil {
		if r.Mesh().GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY {
			return names.BlackHoleCluster
		}
		return names.PassthroughCluster
	}
	policy := sidecar.Spec.GetOutboundTrafficPolicy()
	if policy.GetMode() != networking.OutboundTrafficPolicy_ALLOW_ANY {
		return names.BlackHoleCluster
	}
	proxy := policy.GetEgressProxy()
	if proxy == nil {
		return names.PassthroughCluster
	}
	port := proxy.GetPort().GetNumber()
	if ports := r.Service(proxy.GetHost()).GetPorts(); port == 0 && len(ports) == 1 {
		port = ports[0].GetNumber()
	}
	return names.Outbound(port, proxy.GetSubset(), proxy.GetHost())
}

// ForRoute finds the listener that a route configuration is for; ok is false if there is none of that name.
func ForRoute(r *input.Reader, name string) (l Listener, ok bool) {
	if name == names.HTTPProxyRoute {
		if r.Mesh().GetProxyHttpPort() <= 0 {
			return Listener{}, false
		}
		return Listener{}, true
	}
	for _, e := range ExplicitListeners(r) {
		if e.Route != name {
			continue
		}
		l = Listener{Port: e.Port, egress: e.Egress}
		if e.Protocol == configv1.Protocol_PROTOCOL_HTTP_PROXY {
			l.Port = 0
		}
		return l, true
	}
	bind, port, parsed := names.ParseOutboundRoute(name)
	if !parsed || bind != "" {
		return Listener{}, false
	}
	egress, ok := ImplicitEgress(r)
	return Listener{Port: port, Implicit: true, egress: egress}, ok
}
