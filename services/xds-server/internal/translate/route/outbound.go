package route

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
	"fairlead.dev/services/xds-server/internal/translate/undelivered"
)

const (
	// allPorts is the port of an HTTP forward proxy, whose requests carry the port in their host.
	allPorts = 0
	// blockedStatus answers requests to unknown hosts with outboundTrafficPolicy REGISTRY_ONLY.
	blockedStatus = 502
)

// outboundRouteConfig builds the route configuration of a sidecar's outbound HTTP listener.
func outboundRouteConfig(r *input.Reader, name string) (*routev3.RouteConfiguration, error) {
	if hostname, port, ok := resourcename.ParseSniffedRouteConfig(name); ok {
		return sniffedRouteConfig(r, name, hostname, port)
	}
	listener, ok := sidecarscope.ForRouteConfig(r, name)
	if !ok {
		return nil, nil
	}
	out := newConfiguration(name)
	// Clients may or may not write the port. Only a forward proxy needs it, to choose among the ports of a host.
	out.IgnorePortInHostMatching = listener.Port != allPorts
	if usesVHDS(r, listener) {
		// As for RDS: no listener is better than one that treats known hosts as unknown.
		out.Vhds = &routev3.Vhds{ConfigSource: coreconfig.ADSWithoutTimeout()}
		if r.Class().OnDemand {
			// An on-demand proxy requests each host that has no virtual host; a virtual host "*" would match them all.
			// It requests the host as the client wrote it, port included, and matches domains against the same text.
			out.IgnorePortInHostMatching = false
			return out, nil
		}
		out.VirtualHosts = []*routev3.VirtualHost{fallback(r)}
		return out, nil
	}
	hosts, err := inline(r, listener)
	if err != nil {
		return nil, err
	}
	unknown := fallback(r)
	if listener.Port == allPorts && sidecarscope.UnknownDestinationCluster(r) == resourcename.PassthroughCluster {
		unknown.Routes = unknownAtForwardProxy()
	}
	out.VirtualHosts = append(hosts, unknown)
	return out, nil
}

// usesVHDS reports whether the virtual hosts of a listener's route configuration are delivered by VHDS.
func usesVHDS(r *input.Reader, listener sidecarscope.EgressListener) bool {
	return r.Class().VirtualHosts && listener.Implicit
}

func inline(r *input.Reader, listener sidecarscope.EgressListener) ([]*routev3.VirtualHost, error) {
	if listener.Port == allPorts {
		return forwardProxy(r, listener)
	}
	return newRouteConfig(r, listener).all()
}

func newConfiguration(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponseBody),
		ResponseHeadersToRemove:        []string{undelivered.Header},
	}
}

// sniffedRouteConfig builds the route configuration of a listener on the address of one service. Every request is for
// that service, whatever its host.
func sniffedRouteConfig(r *input.Reader, name, hostname string, port uint32) (*routev3.RouteConfiguration, error) {
	svc := r.Service(hostname)
	i := slices.IndexFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port })
	if i < 0 {
		return nil, nil
	}
	own := serviceaddress.ServicePort{Service: svc, Port: svc.GetPorts()[i]}
	if !protocol.IsSniffed(own.Port.GetProtocol()) && !serviceaddress.IsChosenByAddress(r, own) {
		return nil, nil
	}
	host, err := newBuilder(r, port, contract.MeshGateway).service(r, svc, svc.GetPorts()[i])
	if err != nil {
		return nil, err
	}
	host.Domains = []string{"*"}
	out := newConfiguration(name)
	out.VirtualHosts = []*routev3.VirtualHost{host}
	return out, nil
}

func newBuilder(r *input.Reader, port uint32, gateways ...string) *builder {
	b := &builder{
		reader: r, mesh: r.Mesh(),
		gateways: map[string]bool{}, port: port,
	}
	for _, gateway := range gateways {
		b.gateways[gateway] = true
	}
	return b
}

// fallback builds the virtual host for unknown hosts, by outboundTrafficPolicy.
func fallback(r *input.Reader) *routev3.VirtualHost {
	routes := unknownHostRoutes(r)
	host := virtualHost(routes[len(routes)-1].GetName())
	host.Domains = []string{"*"}
	host.Routes = routes
	return host
}

// unknownHostRoutes lists the routes for requests to an unknown host.
func unknownHostRoutes(r *input.Reader) []*routev3.Route {
	cluster := sidecarscope.UnknownDestinationCluster(r)
	if cluster == resourcename.BlackHoleCluster {
		return []*routev3.Route{directResponseRoute("block_all", blockedStatus)}
	}
	all := passthrough(cluster)
	return []*routev3.Route{tunnel(all), all}
}
