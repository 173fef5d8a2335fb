package differential_test

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// Every name is drawn from few, so that random edits often touch the same objects.
var (
	namespaces = []string{"x", "y", "istio-system"}
	hosts      = protorand.NormalisedHosts
	exports    = [][]string{{"*"}, {"*"}, {"x"}, {"y"}, {"x", "y"}}
	ports      = []uint32{80, 8080, 3306}
	networks   = []string{"", "net1", "net2"}
)

// drawRevision draws one to three objects that are created, changed or removed.
func drawRevision(t *rapid.T, held map[string]*configv1.Resource) (upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	seen := map[string]bool{}
	for range rapid.IntRange(1, 3).Draw(t, "objects") {
		r := drawObject(t, rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom(exports).Draw(t, "exported to"))
		k := r.GetKey().String()
		if seen[k] {
			continue
		}
		seen[k] = true
		if held[k] != nil && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
			removed = append(removed, r.GetKey())
			delete(held, k)
		} else {
			upserts = append(upserts, r)
			held[k] = r
		}
	}
	return upserts, removed
}

// drawEndpoints draws a revision of endpoints: a set that is created, changed or removed.
func drawEndpoints(t *rapid.T, held map[string]*configv1.Resource) (upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	ns, to := rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom(exports).Draw(t, "exported to")
	r := forAudience(t, drawEndpointSet(t, ns, rapid.SampledFrom(hosts).Draw(t, "host"), rapid.IntRange(1, 3).Draw(t, "variant")), to)
	k := r.GetKey().String()
	if held[k] != nil && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
		delete(held, k)
		return nil, []*configv1.ResourceKey{r.GetKey()}
	}
	held[k] = r
	return []*configv1.Resource{r}, nil
}

func drawEndpointSet(t *rapid.T, ns, host string, n int) *configv1.Resource {
	r := meshtest.Endpoints(ns, host, rapid.SampledFrom(ports).Draw(t, "port"), fmt.Sprintf("10.1.0.%d", n), fmt.Sprintf("10.1.1.%d", n))
	r.GetEndpointSet().Endpoints[1].Network = rapid.SampledFrom(networks).Draw(t, "network")
	// The hash is that of the content with the network: a server leaves out what has the same hash.
	return meshtest.Resource(mesh.KindEndpointSet, ns, r.GetKey().GetName(), &configv1.Resource{Body: r.GetBody()})
}

// forAudience makes of some resources the variant that is beside what is exported to all.
func forAudience(t *rapid.T, r *configv1.Resource, to []string) *configv1.Resource {
	if to[0] != "*" && rapid.Bool().Draw(t, "beside what is exported to all") {
		return meshtest.VisibleOnlyIn(r, to...)
	}
	return r
}

// drawObject draws an object of a namespace, exported to others as far as its kind can be. A workload is always the
// same one in x.
func drawObject(t *rapid.T, ns string, to []string) *configv1.Resource {
	host := rapid.SampledFrom(hosts).Draw(t, "host")
	name := rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "name")
	n := rapid.IntRange(1, 3).Draw(t, "variant")
	switch rapid.IntRange(0, 28).Draw(t, "kind") {
	case 23, 24, 25, 26, 27, 28:
		return drawGatewayAPI(t, ns, name, host, n)
	case 19, 20, 21:
		return drawAuthorizationPolicy(t, ns, name, n)
	case 22:
		return drawRequestAuthentication(t, ns, name, n)
	case 15, 16, 17, 18:
		return drawAnySpec(t, ns, name, to, n)
	case 0, 1, 2, 3:
		return forAudience(t, drawService(t, ns, host, to, n), to)
	case 4, 5, 6:
		return forAudience(t, drawEndpointSet(t, ns, host, n), to)
	case 7, 8:
		return meshtest.Config(mesh.KindDestinationRule, ns, name, destinationRule(host, n), meshtest.ExportedTo(to...))
	case 9, 10:
		return meshtest.Config(mesh.KindVirtualService, ns, name, drawVirtualService(t, host, n), meshtest.ExportedTo(to...),
			meshtest.Aged(time.Duration(n)))
	case 11:
		s := &networking.Sidecar{Egress: []*networking.IstioEgressListener{{
			Hosts: rapid.SampledFrom([][]string{
				{"./*"}, {"*/*"}, {"x/*", "istio-system/*"}, {"~/*"}, {"*/" + host, "./" + hosts[1]}, {"*/*", "~y/*"},
			}).Draw(t, "egress"),
		}}}
		if n == 1 {
			s.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": "d"}}
		}
		return meshtest.Config(mesh.KindSidecar, ns, "s", s)
	case 12:
		return meshtest.PeerAuthentication(ns, name, []string{"STRICT", "PERMISSIVE", "DISABLE"}[n-1])
	case 13:
		return drawEnvoyFilter(t, ns, name)
	default:
		return meshtest.Workload("x", "d", "10.0.1.100", func(w *configv1.Workload) {
			w.Network, w.Cluster = networks[n-1], []string{"", "test", "east"}[n-1]
			w.Labels = map[string]string{"app": []string{"d", "e", "f"}[n-1]}
			if n > 1 {
				w.Targets = []*configv1.ServiceTarget{{Hostname: hosts[0], Namespace: "x", Port: 80, TargetPort: 8080}}
			}
		})
	}
}

// kinds whose specs are drawn from the whole API.
var kinds = []struct {
	name string
	spec func() proto.Message
}{
	{mesh.KindVirtualService, func() proto.Message { return &networking.VirtualService{} }},
	{mesh.KindDestinationRule, func() proto.Message { return &networking.DestinationRule{} }},
	{mesh.KindSidecar, func() proto.Message { return &networking.Sidecar{} }},
	{mesh.KindPeerAuthentication, func() proto.Message { return &security.PeerAuthentication{} }},
	{mesh.KindAuthorizationPolicy, func() proto.Message { return &security.AuthorizationPolicy{} }},
	{mesh.KindRequestAuthentication, func() proto.Message { return &security.RequestAuthentication{} }},
	{mesh.KindGateway, func() proto.Message { return &networking.Gateway{} }},
}

// drawAnySpec draws an object with any fields of the API that validation accepts.
func drawAnySpec(t *rapid.T, ns, name string, to []string, n int) *configv1.Resource {
	kind := rapid.SampledFrom(kinds).Draw(t, "of the whole API")
	spec := kind.spec()
	protorand.Normalised.FillSeeded(rapid.SampledFrom(protorand.Accepted(kind.name)).Draw(t, "fields"), spec)
	return meshtest.Config(kind.name, ns, name, spec, meshtest.ExportedTo(to...), meshtest.Aged(time.Duration(n)))
}

// drawEnvoyFilter draws an EnvoyFilter for the mesh, a namespace or a workload. It patches resources of every kind, and
// some patches would break the resource.
func drawEnvoyFilter(t *rapid.T, ns, name string) *configv1.Resource {
	scope := rapid.SampledFrom([]string{"", "", "workloadSelector: {labels: {app: d}}", "priority: -1"}).Draw(t, "for")
	patch := rapid.SampledFrom([]string{
		"{applyTo: CLUSTER, match: {cluster: {portNumber: 80}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}",
		"{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, proxy: {metadata: {SERVICE_ACCOUNT: default}}}, patch: {operation: MERGE, " +
			"value: {per_connection_buffer_limit_bytes: 7}}}",
		"{applyTo: CLUSTER, match: {cluster: {service: " + hosts[0] + "}}, patch: {operation: REMOVE}}",
		"{applyTo: CLUSTER, patch: {operation: ADD, value: {name: added, connect_timeout: 3s, type: STATIC}}}",
		"{applyTo: LISTENER, match: {listener: {portNumber: 80}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 7}}}",
		"{applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: " +
			"{name: envoy.filters.http.cors}}}}}, patch: {operation: REMOVE}}",
		"{applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: " +
			"{name: envoy.filters.http.router}}}}}, patch: {operation: REMOVE}}",
		"{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: " +
			"envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.jwt_authn}}}}}, patch: {operation: REMOVE}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: ADD, value: {name: added, domains: [a.x, " +
			"added.example.com]}}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: '" + hosts[1] + ":80'}}}, patch: {operation: REMOVE}}",
		"{applyTo: VIRTUAL_HOST, patch: {operation: MERGE, value: {include_attempt_count_in_response: true}}}",
		"{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: '" + hosts[0] +
			":80'}}}, patch: {operation: INSERT_FIRST, value: {name: first, match: {path: /first}, direct_response: {status: 418}}}}",
		"{applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}",
	}).Draw(t, "patch")
	return meshtest.EnvoyFilter(ns, name, scope+"\nconfigPatches: ["+patch+"]",
		meshtest.Aged(time.Duration(rapid.IntRange(1, 3).Draw(t, "age"))))
}

func drawService(t *rapid.T, ns, host string, to []string, n int) *configv1.Resource {
	protocol := rapid.SampledFrom([]configv1.Protocol{
		configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_TCP, configv1.Protocol_PROTOCOL_TLS,
		configv1.Protocol_PROTOCOL_UNSPECIFIED,
	}).Draw(t, "protocol")
	port := rapid.SampledFrom(ports).Draw(t, "port")
	return meshtest.Service(ns, host, port, meshtest.Visible(to...), func(s *configv1.Service) {
		s.CreationTime = timestamppb.New(meshtest.Epoch.Add(time.Duration(n) * time.Second))
		s.Ports[0].Protocol = protocol
		if n > 1 {
			s.Ports = append(s.Ports, &configv1.ServicePort{Name: "more", Number: port + 1, Protocol: configv1.Protocol_PROTOCOL_HTTP,
				TargetPort: port})
		}
		if rapid.IntRange(0, 7).Draw(t, "leads into a network") == 0 {
			s.NetworkGateway = &configv1.NetworkGateway{Network: networks[1+n%2], Addresses: []string{"10.7.0.1", fmt.Sprintf("10.7.0.%d", n+1)},
				Port: 15443}
		}
		if rapid.IntRange(0, 3).Draw(t, "is in another cluster") == 0 {
			s.Source, s.ClusterLocal = &configv1.SourceRef{Kind: "Service"}, n%2 == 0
			at := &configv1.ClusterAddresses{Cluster: rapid.SampledFrom([]string{"test", "east"}).Draw(t, "cluster")}
			at.Addresses = []string{fmt.Sprintf("10.96.0.%d", rapid.IntRange(1, 4).Draw(t, "vip there"))}
			s.ClusterAddresses = append(s.ClusterAddresses, at)
		}
		switch rapid.IntRange(0, 3).Draw(t, "addresses") {
		case 0:
			s.Headless, s.Resolution = host[0] != '*', configv1.Resolution_RESOLUTION_STATIC
		case 1: // no address
		default:
			s.Addresses = []string{fmt.Sprintf("10.96.0.%d", rapid.IntRange(1, 4).Draw(t, "vip"))}
		}
	})
}

func destinationRule(host string, n int) *networking.DestinationRule {
	return &networking.DestinationRule{
		Host: host,
		Subsets: []*networking.Subset{
			{Name: "v1", Labels: map[string]string{"version": "v1"}},
			{Name: fmt.Sprint("v", n), Labels: map[string]string{"version": fmt.Sprint(n)}},
		}[:max(n-1, 0)],
		TrafficPolicy: &networking.TrafficPolicy{
			ConnectionPool: &networking.ConnectionPoolSettings{
				Tcp: &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: int32(n)}}, //nolint:gosec // small
			OutlierDetection: &networking.OutlierDetection{Consecutive_5XxErrors: wrapperspb.UInt32(uint32(n)),
				Interval: durationpb.New(time.Second)}, //nolint:gosec // small
		},
	}
}

func drawVirtualService(t *rapid.T, host string, n int) *networking.VirtualService {
	other := rapid.SampledFrom(hosts[:4]).Draw(t, "destination")
	vs := &networking.VirtualService{Hosts: []string{host}}
	if n == 3 {
		vs.Hosts = append(vs.Hosts, "only.example.com")
	}
	route := &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: other}, Weight: 100}}}
	if n == 2 {
		route.Match = []*networking.HTTPMatchRequest{{SourceNamespace: "x"}, {SourceLabels: map[string]string{"app": "d"}}}
	}
	vs.Http = append(vs.Http, route)
	if host[0] != '*' {
		vs.Tcp = []*networking.TCPRoute{{
			Match: []*networking.L4MatchAttributes{{Port: 3306}},
			Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: other, Port: &networking.PortSelector{Number: 3306}}}},
		}}
	}
	return vs
}

// settings are mesh-wide; settings(0) is what a mesh begins with.
func settings(n int) *configv1.Resource {
	mode := []meshv1alpha1.MeshConfig_OutboundTrafficPolicy_Mode{
		meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY, meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
	}[n%2]
	var gateways []*configv1.NetworkGateway
	if n%3 == 2 {
		gateways = append(gateways, &configv1.NetworkGateway{Network: networks[1+n%2], Addresses: []string{fmt.Sprintf("10.7.1.%d", n)},
			Port: 443})
	}
	return meshtest.Mesh(&meshv1alpha1.MeshConfig{
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: mode}, ExtensionProviders: providers(n),
	}, gateways...)
}
