// Package scope says which outbound listeners a sidecar has by its Sidecar resource, and which services each of them may reach. Listeners
// and routes are built from the same answer, so that no listener asks for a route configuration that does not exist.
package scope

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
)

const loopback = "127.0.0.1"

// Listener is an outbound listener as far as routing is concerned.
type Listener struct {
	// Port is the port that callers address; 0 for a forward proxy, which serves every port.
	Port uint32
	// Implicit is true for a listener that no user has given a port: there may be one for every port that services have.
	Implicit bool
	// egress is the Sidecar's listener; nil where no Sidecar limits what is reached.
	egress *networking.IstioEgressListener
	// hosts of the egress listener, "namespace/dnsName", where it limits hosts that are no service; nil admits all.
	hosts []string
	own   string
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

// Admits tells whether the listener imports a host that is no service, from a VirtualService of the namespace.
func (l Listener) Admits(namespace, hostname string) bool {
	if l.hosts == nil {
		return true
	}
	for _, entry := range l.hosts {
		from, pattern, ok := strings.Cut(entry, "/")
		if !ok {
			continue
		}
		if from == "." {
			from = l.own
		}
		if (from == "*" || from == namespace) && covers(pattern, hostname) {
			return true
		}
	}
	return false
}

func covers(pattern, hostname string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(hostname, suffix)
	}
	return pattern == hostname
}

// Explicit is an egress listener of the Sidecar that names a port.
type Explicit struct {
	Egress   *networking.IstioEgressListener
	Port     uint32
	Protocol configv1.Protocol
	// Bind is the address; empty for the wildcard of a captured listener.
	Bind string
	// BindToPort is true if the proxy listens there itself, rather than being handed captured connections.
	BindToPort bool
	// Route names the listener's route configuration.
	Route string
}

// ExplicitListeners lists the Sidecar's egress listeners that name a port, in the Sidecar's order. Those on unix sockets are left out: they
// have no port.
func ExplicitListeners(r *input.Reader) []Explicit {
	var out []Explicit
	for _, egress := range egress(r) {
		number := egress.GetPort().GetNumber()
		if number == 0 {
			continue
		}
		e := Explicit{
			Egress: egress, Port: number, Protocol: protocol.Parse(egress.GetPort().GetProtocol()),
			Bind: egress.GetBind(), BindToPort: bindsToPort(egress.GetCaptureMode(), r.Class().Interception),
			Route: names.OutboundRoute(number),
		}
		if e.BindToPort && e.Bind == "" {
			e.Bind = loopback
		}
		if slices.ContainsFunc(out, func(o Explicit) bool { return o.Port == number }) {
			if slices.ContainsFunc(out, func(o Explicit) bool { return o.Port == number && o.Bind == e.Bind }) {
				continue
			}
			e.Route = names.BoundOutboundRoute(e.Bind, number)
		}
		out = append(out, e)
	}
	return out
}

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
	all := egress(r)
	for _, e := range all {
		if e.GetPort().GetNumber() == 0 && e.GetBind() == "" {
			return e, true
		}
	}
	return nil, len(all) == 0
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
		l = Listener{Port: e.Port, egress: e.Egress, hosts: e.Egress.GetHosts(), own: r.Namespace()}
		if l.hosts == nil {
			l.hosts = []string{}
		}
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
	l = Listener{Port: port, Implicit: true, egress: egress}
	if egress != nil {
		l.hosts, l.own = egress.GetHosts(), r.Namespace()
	}
	return l, ok
}

func egress(r *input.Reader) []*networking.IstioEgressListener {
	sidecar := r.Sidecar()
	if sidecar == nil {
		return nil
	}
	return sidecar.Spec.GetEgress()
}
