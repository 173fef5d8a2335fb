// Package sidecarscope reads the Sidecar resource of a proxy: which outbound listeners the proxy has
// (ExplicitListeners, ImplicitEgress, ForRouteConfig), which services each of them may reach, and where connections to
// unknown destinations go (UnknownDestinationCluster).
//
// Packages listener and route build from the same answers, so no listener names a route configuration that does not
// exist.
package sidecarscope

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

const (
	loopback = "127.0.0.1"
	wildcard = "0.0.0.0"
)

// EgressListener is an outbound listener, as its route configuration needs it.
type EgressListener struct {
	// Port is the port that callers address; 0 for an HTTP forward proxy, whose requests name any port.
	Port uint32
	// Implicit is true for the listeners of an egress listener without a port: one for each port that services have.
	Implicit bool
	// egress is the Sidecar's egress listener; nil if no Sidecar limits the services.
	egress *networking.IstioEgressListener
}

// Services lists the services that may be reached, by hostname.
func (l EgressListener) Services(r *input.Reader) []*configv1.Service {
	if l.egress == nil {
		return r.Services()
	}
	return r.EgressServices(l.egress)
}

// Service returns the service of a hostname, or nil if it does not exist or may not be reached.
func (l EgressListener) Service(r *input.Reader, hostname string) *configv1.Service {
	svc := r.Service(hostname)
	if svc == nil || l.egress != nil && !r.Admits(l.egress, svc) {
		return nil
	}
	return svc
}

// Speaks reports whether some service that may be reached declares one of the protocols on the listener's port.
func (l EgressListener) Speaks(r *input.Reader, protocols ...configv1.Protocol) bool {
	return l.Port != 0 && r.Speaks(l.egress, l.Port, protocols...)
}

// Admits reports whether the listener imports a host of a VirtualService in a namespace; the host has no service.
func (l EgressListener) Admits(r *input.Reader, namespace, hostname string) bool {
	return r.AdmitsHost(l.egress, namespace, hostname)
}

// ExplicitListener is an egress listener of the Sidecar that names a port or a unix socket.
type ExplicitListener struct {
	Egress   *networking.IstioEgressListener
	Port     uint32
	Protocol configv1.Protocol
	// Bind is the address, or "unix://" and the path of a socket; "" is the wildcard of a listener that gets redirected
	// connections.
	Bind string
	// BindToPort is true if Envoy binds the address; false if the listener gets redirected connections only.
	BindToPort bool
	// OnLoopback is true if the listener binds the loopback address as well.
	OnLoopback bool
	// Route is the name of the route configuration.
	Route string
}

// ExplicitListeners lists the Sidecar's egress listeners that name a port or a unix socket, in the Sidecar's order. Of
// two with one address and port the first is listed. A listener on a unix socket may serve every port: then requests
// name the port, as with a forward proxy.
func ExplicitListeners(r *input.Reader) []ExplicitListener {
	var out []ExplicitListener
	for _, egress := range r.EgressListeners() {
		e := ExplicitListener{
			Egress: egress, Port: egress.GetPort().GetNumber(), Protocol: contract.ParseProtocol(egress.GetPort().GetProtocol()),
			Bind: egress.GetBind(), BindToPort: BindsToPort(egress.GetCaptureMode(), r.Class().Interception),
		}
		same := func(o ExplicitListener) bool { return o.Bind == e.Bind && (o.Port == e.Port || e.OnSocket()) }
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
				// The listener on 0.0.0.0 is the one of redirected traffic.
				e.Bind, e.OnLoopback = r.Addresses()[0], !bindsLoopback(r, e.Port)
			}
			e.Route = resourcename.OutboundRouteConfig(e.Port)
			if slices.ContainsFunc(out, func(o ExplicitListener) bool { return o.Route == e.Route }) {
				e.Route = resourcename.BoundOutboundRouteConfig(e.Bind, e.Port)
			}
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, e)
		}
	}
	return out
}

// bindsLoopback reports whether an egress listener of the Sidecar binds the loopback address with the port.
func bindsLoopback(r *input.Reader, port uint32) bool {
	return slices.ContainsFunc(r.EgressListeners(), func(l *networking.IstioEgressListener) bool {
		return l.GetPort().GetNumber() == port && (l.GetBind() == "" || l.GetBind() == loopback) &&
			BindsToPort(l.GetCaptureMode(), r.Class().Interception)
	})
}

// BindsLoopbackToo reports whether an ingress or egress listener for all addresses of a port may bind the loopback
// address too: no egress listener of the Sidecar is bound there.
func BindsLoopbackToo(r *input.Reader, port uint32) bool {
	return !slices.ContainsFunc(ExplicitListeners(r), func(e ExplicitListener) bool {
		return e.Port == port && e.BindToPort && (e.Bind == loopback || e.OnLoopback)
	})
}

// OnSocket reports whether the listener is on a unix socket.
func (e ExplicitListener) OnSocket() bool { return strings.HasPrefix(e.Bind, UnixSocket) }

// UnixSocket is the prefix of a unix socket's address.
const UnixSocket = "unix://"

// BindsToPort reports whether Envoy binds the port of a listener with this captureMode.
func BindsToPort(mode networking.CaptureMode, interception class.Interception) bool {
	if mode == networking.CaptureMode_DEFAULT {
		return interception == class.None
	}
	return mode == networking.CaptureMode_NONE
}

// ImplicitEgress returns the Sidecar's egress listener without a port. It is nil, with ok true, if no Sidecar limits
// the services; ok is false if the Sidecar has no such listener.
func ImplicitEgress(r *input.Reader) (l *networking.IstioEgressListener, ok bool) {
	all := r.EgressListeners()
	for _, e := range all {
		if e.GetPort().GetNumber() == 0 && e.GetBind() == "" {
			return e, true
		}
	}
	return nil, len(all) == 0
}

// ImplicitBindsToPort reports whether Envoy itself binds the ports of the services: nothing redirects connections to
// it.
func ImplicitBindsToPort(r *input.Reader) bool {
	egress, _ := ImplicitEgress(r)
	return BindsToPort(egress.GetCaptureMode(), r.Class().Interception)
}

// UnknownDestinationCluster returns the cluster for destinations that no service has, by outboundTrafficPolicy:
// PassthroughCluster, BlackHoleCluster, or the cluster of the Sidecar's egressProxy.
func UnknownDestinationCluster(r *input.Reader) string {
	sidecar := r.Sidecar()
	if sidecar == nil || sidecar.Spec.GetOutboundTrafficPolicy() == nil {
		if r.Mesh().GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY {
			return resourcename.BlackHoleCluster
		}
		return resourcename.PassthroughCluster
	}
	policy := sidecar.Spec.GetOutboundTrafficPolicy()
	if policy.GetMode() != networking.OutboundTrafficPolicy_ALLOW_ANY {
		return resourcename.BlackHoleCluster
	}
	proxy := policy.GetEgressProxy()
	if proxy == nil {
		return resourcename.PassthroughCluster
	}
	port := proxy.GetPort().GetNumber()
	if ports := r.Service(proxy.GetHost()).GetPorts(); port == 0 && len(ports) == 1 {
		port = ports[0].GetNumber()
	}
	return resourcename.OutboundCluster(port, proxy.GetSubset(), proxy.GetHost())
}

// ForRouteConfig returns the listener that uses a route configuration; ok is false if there is none of that name.
func ForRouteConfig(r *input.Reader, name string) (l EgressListener, ok bool) {
	if name == resourcename.HTTPProxyRouteConfig {
		if r.Mesh().GetProxyHttpPort() <= 0 {
			return EgressListener{}, false
		}
		return EgressListener{}, true
	}
	for _, e := range ExplicitListeners(r) {
		if e.Route != name {
			continue
		}
		l = EgressListener{Port: e.Port, egress: e.Egress}
		if e.Protocol == configv1.Protocol_PROTOCOL_HTTP_PROXY {
			l.Port = 0
		}
		return l, true
	}
	bind, port, parsed := resourcename.ParseOutboundRouteConfig(name)
	if !parsed || bind != "" {
		return EgressListener{}, false
	}
	egress, ok := ImplicitEgress(r)
	return EgressListener{Port: port, Implicit: true, egress: egress}, ok
}
