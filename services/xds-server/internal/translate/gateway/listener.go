package gateway

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// AnyHost is the domain of a listener or a route of the Gateway API that no hostname limits.
const AnyHost = "*"

// Listener is one listener of the Gateway API.
type Listener struct {
	Owner *mesh.GatewayListeners
	Spec  *configv1.GatewayListener
	// TLS is nil for a listener without.
	TLS *networking.ServerTLSSettings
}

// Reference names the listener for input.Reader.AttachedDomains and AttachedRoutes.
func (l Listener) Reference() string { return l.Owner.Reference(l.Spec.GetName()) }

// Host is the domain that the listener is limited to, exact, "*.<suffix>" or AnyHost.
func (l Listener) Host() string { return asDomain(l.Spec.GetHostname()) }

// Terminates reports whether the listener decrypts TLS.
func (l Listener) Terminates() bool {
	return l.TLS != nil && l.TLS.GetMode() != networking.ServerTLSSettings_PASSTHROUGH
}

// TerminatesHTTP reports whether the listener decrypts HTTPS.
func (l Listener) TerminatesHTTP() bool {
	return l.Spec.GetProtocol() == configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS
}

// Routes lists the routes that the listener has taken for a domain.
func (l Listener) Routes(r *input.Reader, domain string) []*mesh.HostRoute {
	if domain == AnyHost {
		domain = ""
	}
	return r.AttachedRoutes(l.Reference(), domain)
}

// Kind is the kind of the object that the listener is from, without its API group.
func (l Listener) Kind() string {
	kind, _, _ := strings.Cut(l.Owner.Key.Kind, ".")
	return kind
}

func (l Listener) kind() Kind {
	switch l.Spec.GetProtocol() {
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP:
		return HTTP
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
		return TLS
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP:
		return UDP
	default:
		return TCP
	}
}

func asDomain(hostname string) string {
	if hostname == "" {
		return AnyHost
	}
	return hostname
}

// ListenerFor returns the listener of the Gateway API that alone serves a domain on the port: the one with the most
// specific hostname that covers it.
func (p Port) ListenerFor(domain string) (l Listener, ok bool) {
	for host := range mesh.Covering(domain) {
		i := slices.IndexFunc(p.Listeners, func(l Listener) bool { return l.Host() == host })
		if i >= 0 {
			return p.Listeners[i], true
		}
	}
	return Listener{}, false
}

// Domains lists, sorted, the domains that a listener of the port serves: its own hostname, also without any route, and
// those of its routes that no other listener is more specific for.
func (p Port) Domains(r *input.Reader, l Listener) []string {
	domains := []string{l.Host()}
	for _, domain := range r.AttachedDomains(l.Reference()) {
		domain = asDomain(domain)
		if serves, ok := p.ListenerFor(domain); ok && serves.Reference() == l.Reference() {
			domains = append(domains, domain)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

// Misdirected lists the hostnames of the other HTTPS listeners of the port. A request for one of them that came by a
// connection of this listener is answered with 421, unless the listener serves a domain that is more specific.
func (p Port) Misdirected(l Listener) (domains []string) {
	for _, other := range p.Listeners {
		if other.TerminatesHTTP() && other.Reference() != l.Reference() {
			domains = append(domains, other.Host())
		}
	}
	return domains
}

// ListenerRoute names the route configuration of a listener of the Gateway API on the port.
func (p Port) ListenerRoute(l Listener) string {
	if p.Kind == HTTP {
		return p.HTTPRoute()
	}
	return resourcename.ListenerRouteConfig(p.Number, l.Reference())
}

// IsRevoked reports whether a name is that of the route configuration of a listener for HTTPS whose certificate the
// gateway may not use any more.
func IsRevoked(r *input.Reader, route string) bool {
	for _, owner := range r.GatewayListeners() {
		for _, l := range owner.Spec.GetRevoked() {
			for _, number := range targetPorts(r.Targets(), l.GetPort(), false) {
				if resourcename.ListenerRouteConfig(number, owner.Reference(l.GetName())) == route {
					return true
				}
			}
		}
	}
	return false
}

// addListeners adds the listeners of the Gateway API to the ports. Listeners of a kind that the port does not have, and
// those with a hostname that an older one of the port has, are left out.
func (p *ports) addListeners(r *input.Reader) {
	bind := address(r)
	for _, owner := range r.GatewayListeners() {
		for i, spec := range owner.Spec.GetListeners() {
			l := Listener{Owner: owner, Spec: spec, TLS: owner.TLS[i]}
			for _, number := range targetPorts(r.Targets(), spec.GetPort(), l.kind() == UDP) {
				port := p.at(bind, number, l.kind())
				if port.Kind != l.kind() || slices.ContainsFunc(port.Listeners, func(o Listener) bool { return o.Host() == l.Host() }) {
					continue
				}
				port.Listeners = append(port.Listeners, l)
			}
		}
	}
}
