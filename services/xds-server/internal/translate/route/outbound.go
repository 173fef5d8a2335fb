package route

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/replica"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

const (
	// maxDirectResponseBody is the largest body of a directResponse that Istio accepts.
	maxDirectResponseBody = 1 << 20
	// implicitPort is where HTTP clients connect that name no port. Hosts of VirtualServices that are no service exist on it alone.
	implicitPort = 80
	// allPorts stands for a forward proxy, whose requests carry the port in their host.
	allPorts = 0
)

// outbound builds a sidecar's route configuration of one outbound HTTP listener.
func outbound(r *input.Reader, name string) (*routev3.RouteConfiguration, error) {
	if hostname, port, ok := names.ParseSniffedRoute(name); ok {
		return sniffed(r, name, hostname, port)
	}
	listener, ok := scope.ForRoute(r, name)
	if !ok {
		return nil, nil
	}
	b := newBuilder(r, listener.Port, MeshGateway)
	candidates, err := b.hosts(r, listener)
	if err != nil {
		return nil, err
	}
	hosts := append(assign(candidates), fallback(r))
	return &routev3.RouteConfiguration{
		Name:                           name,
		VirtualHosts:                   hosts,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponseBody),
		// A client may write the port or not. Only a forward proxy needs it to tell the ports of one host apart.
		IgnorePortInHostMatching: listener.Port != allPorts,
	}, nil
}

// sniffed builds the route configuration of a listener on one service's address: whatever the request's host says, it is for that service.
func sniffed(r *input.Reader, name, hostname string, port uint32) (*routev3.RouteConfiguration, error) {
	svc := r.Service(hostname)
	i := slices.IndexFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port })
	if i < 0 || !protocol.IsSniffed(svc.GetPorts()[i].GetProtocol()) {
		return nil, nil
	}
	b := newBuilder(r, port, MeshGateway)
	host, err := b.service(r, svc, svc.GetPorts()[i])
	if err != nil {
		return nil, err
	}
	host.Domains = []string{"*"}
	return &routev3.RouteConfiguration{
		Name:                           name,
		VirtualHosts:                   []*routev3.VirtualHost{host},
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponseBody),
	}, nil
}

func newBuilder(r *input.Reader, port uint32, gateways ...string) *builder {
	key := r.Class()
	b := &builder{
		registry: r, mesh: r.Mesh(), labels: key.Labels, namespace: key.Namespace,
		gateways: map[string]bool{}, port: port,
	}
	for _, gateway := range gateways {
		b.gateways[gateway] = true
	}
	return b
}

// hosts lists the virtual hosts of all services on the listener's port, and of VirtualServices whose hosts are no service.
func (b *builder) hosts(r *input.Reader, listener scope.Listener) ([]candidate, error) {
	key := r.Class()
	var out []candidate
	known := map[string]bool{}
	for _, svc := range listener.Services {
		known[svc.GetHostname()] = true
		ports := httpPorts(svc, listener.Port)
		for _, port := range ports {
			b.port = port.GetNumber()
			host, err := b.service(r, svc, port)
			if err != nil {
				return nil, err
			}
			own := []string{names.Authority(svc.GetHostname())}
			if !strings.HasPrefix(svc.GetHostname(), "*") {
				// Resolvers that are told not to search write a dot at the end.
				own = append(own, svc.GetHostname()+".")
			}
			others := slices.Concat(shortNames(svc.GetHostname(), key.Namespace, key.DNSDomain), addresses(svc))
			if svc.GetHeadless() && !strings.HasPrefix(svc.GetHostname(), "*") {
				// The Pods of a StatefulSet: db-0.db.default.svc.cluster.local and its short forms.
				for _, domain := range append([]string{svc.GetHostname()}, shortNames(svc.GetHostname(), key.Namespace, key.DNSDomain)...) {
					others = append(others, "*."+domain)
				}
			}
			if listener.Port == allPorts {
				bare := slices.Concat(own, others)
				own, others = withPort(own, port.GetNumber()), withPort(others, port.GetNumber())
				if port == implicit(ports) {
					others = append(others, bare...)
				}
			}
			out = append(out, candidate{host: host, own: own, others: others})
		}
	}
	if listener.Port != implicitPort && listener.Port != allPorts {
		return out, nil
	}
	b.port = implicitPort
	external, err := b.unregistered(r, known, listener)
	return append(out, external...), err
}

// implicit is the port that a forward proxy's client means when it names none: 80, or the only sensible one.
func implicit(ports []*configv1.ServicePort) *configv1.ServicePort {
	for _, port := range ports {
		if port.GetNumber() == implicitPort {
			return port
		}
	}
	return ports[0]
}

func httpPorts(svc *configv1.Service, number uint32) []*configv1.ServicePort {
	var out []*configv1.ServicePort
	for _, port := range svc.GetPorts() {
		if (number == allPorts || port.GetNumber() == number) && protocol.MayBeHTTP(port.GetProtocol()) &&
			!slices.ContainsFunc(out, func(p *configv1.ServicePort) bool { return p.GetNumber() == port.GetNumber() }) {
			out = append(out, port)
		}
	}
	return out
}

// service builds the virtual host of a service port: by the first VirtualService that says something about this port and source, in order of
// how specific its host is and then of age, or straight to the cluster. b.port must be the port's number. Domains are left to the caller.
func (b *builder) service(r *input.Reader, svc *configv1.Service, port *configv1.ServicePort) (*routev3.VirtualHost, error) {
	host := virtualHost(names.HostPort(svc.GetHostname(), port.GetNumber()))
	for _, vs := range r.VirtualServicesOf(MeshGateway, svc.GetHostname()) {
		routes, err := b.virtualService(vs)
		if err != nil {
			return nil, err
		}
		if len(routes) > 0 {
			host.Routes = routes
			return host, nil
		}
	}
	var hash *routev3.RouteAction_HashPolicy
	if rule := r.DestinationRule(svc.GetHostname()); rule != nil {
		hash = hashPolicy(policy.ConsistentHash(policy.For(rule.Spec, nil, port.GetNumber())))
	}
	host.Routes = []*routev3.Route{plain(
		names.Outbound(port.GetNumber(), "", svc.GetHostname()),
		names.HostPort(svc.GetHostname(), port.GetNumber())+"/*",
		retries(b.mesh.GetDefaultHttpRetryPolicy(), hash != nil),
		hash,
	)}
	return host, nil
}

// unregistered lists virtual hosts for hosts of VirtualServices that are no service of the listener, the oldest VirtualService first.
func (b *builder) unregistered(r *input.Reader, known map[string]bool, listener scope.Listener) ([]candidate, error) {
	var out []candidate
	for _, vs := range r.VirtualServices(MeshGateway) {
		for _, hostname := range vs.Spec.GetHosts() {
			if known[hostname] || hostname == "*" || coversAny(hostname, listener.Services) || !listener.Admits(vs.Key.Namespace, hostname) {
				continue
			}
			routes, err := b.virtualService(vs)
			if err != nil {
				return nil, err
			}
			if len(routes) == 0 {
				continue
			}
			known[hostname] = true
			host := virtualHost(names.HostPort(hostname, b.port))
			host.Routes = routes
			own := []string{names.Authority(hostname)}
			others := shortNames(hostname, b.namespace, r.Class().DNSDomain)
			if listener.Port == allPorts {
				own, others = withPort(own, implicitPort), slices.Concat(own, others, withPort(others, implicitPort))
			}
			out = append(out, candidate{host: host, own: own, others: others})
		}
	}
	return out, nil
}

// coversAny tells whether a wildcard host is about services that the listener has: they are routed one by one.
func coversAny(hostname string, services []*configv1.Service) bool {
	suffix, ok := strings.CutPrefix(hostname, "*")
	if !ok {
		return false
	}
	return slices.ContainsFunc(services, func(s *configv1.Service) bool { return strings.HasSuffix(s.GetHostname(), suffix) })
}

func virtualHost(name string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, IncludeRequestAttemptCount: true}
}

// fallback answers for hosts that nobody knows, as outboundTrafficPolicy says.
func fallback(r *input.Reader) *routev3.VirtualHost {
	if AllowsAny(r.Mesh(), r.Sidecar()) {
		host := virtualHost("allow_any")
		host.Domains = []string{"*"}
		host.Routes = []*routev3.Route{passthrough()}
		return host
	}
	host := virtualHost("block_all")
	host.Domains = []string{"*"}
	host.Routes = []*routev3.Route{reject("block_all", 502)}
	return host
}

// AllowsAny tells whether a sidecar lets traffic to unknown destinations through; the Sidecar's policy stands above the mesh's.
func AllowsAny(mesh *meshv1alpha1.MeshConfig, sidecar *replica.Sidecar) bool {
	if sidecar != nil && sidecar.Spec.GetOutboundTrafficPolicy() != nil {
		return sidecar.Spec.GetOutboundTrafficPolicy().GetMode() == networking.OutboundTrafficPolicy_ALLOW_ANY
	}
	return mesh.GetOutboundTrafficPolicy().GetMode() != meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
}
