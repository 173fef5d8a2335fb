package route

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

const (
	// allPorts stands for a forward proxy, whose requests carry the port in their host.
	allPorts = 0
	// blockedStatus answers requests to hosts that nobody knows, where the policy does not let them through.
	blockedStatus = 502
)

// outbound builds a sidecar's route configuration of one outbound HTTP listener.
func outboundRouteConfig(r *input.Reader, name string) (*routev3.RouteConfiguration, error) {
	if hostname, port, ok := resourcename.ParseSniffedRouteConfig(name); ok {
		return sniffedRouteConfig(r, name, hostname, port)
	}
	listener, ok := sidecarscope.ForRouteConfig(r, name)
	if !ok {
		return nil, nil
	}
	out := newConfiguration(name)
	// A client may write the port or not. Only a forward proxy needs it to tell the ports of one host apart.
	out.IgnorePortInHostMatching = listener.Port != allPorts
	if usesVHDS(r, listener) {
		out.Vhds = &routev3.Vhds{ConfigSource: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			// As with route configurations: better no listener than one that treats known hosts as unknown.
			InitialFetchTimeout: durationpb.New(0),
			ResourceApiVersion:  corev3.ApiVersion_V3,
		}}
		if r.Class().OnDemand {
			// The proxy asks for what it does not find, and it finds "*" always. It asks for the host as the client wrote it, with the port,
			// and looks it up in the same way.
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
	out.VirtualHosts = append(hosts, fallback(r))
	return out, nil
}

// usesVHDS tells whether the virtual hosts of a listener's route configuration are resources of their own.
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
	}
}

// sniffed builds the route configuration of a listener on one service's address: whatever the request's host says, it is for that service.
func sniffedRouteConfig(r *input.Reader, name, hostname string, port uint32) (*routev3.RouteConfiguration, error) {
	svc := r.Service(hostname)
	i := slices.IndexFunc(svc.GetPorts(), func(p *configv1.ServicePort) bool { return p.GetNumber() == port })
	if i < 0 || !protocol.IsSniffed(svc.GetPorts()[i].GetProtocol()) {
		return nil, nil
	}
	host, err := newBuilder(r, port, MeshGateway).service(r, svc, svc.GetPorts()[i])
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

// fallback answers for hosts that nobody knows, as outboundTrafficPolicy says.
func fallback(r *input.Reader) *routev3.VirtualHost {
	routes := unknownHostRoutes(r)
	host := virtualHost(routes[len(routes)-1].GetName())
	host.Domains = []string{"*"}
	host.Routes = routes
	return host
}

// unknown lists the routes to a host that nobody knows.
func unknownHostRoutes(r *input.Reader) []*routev3.Route {
	cluster := sidecarscope.UnknownDestinationCluster(r)
	if cluster == resourcename.BlackHoleCluster {
		return []*routev3.Route{directResponseRoute("block_all", blockedStatus)}
	}
	all := passthrough(cluster)
	return []*routev3.Route{tunnel(all), all}
}
