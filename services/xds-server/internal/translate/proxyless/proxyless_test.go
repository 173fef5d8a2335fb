package proxyless

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

const reviews = "reviews.shop.svc.cluster.local"

// grpcClient is a Reader for a proxyless gRPC client in namespace shop.
func grpcClient(t *testing.T, resources ...*configv1.Resource) *input.Reader {
	t.Helper()
	return grpcClientWithKey(t, &class.Key{}, resources...)
}

// grpcClientWithKey is grpcClient with the given class key.
func grpcClientWithKey(t *testing.T, key *class.Key, resources ...*configv1.Resource) *input.Reader {
	t.Helper()
	key.Type, key.Namespace, key.Interception = class.Proxyless, "shop", class.None
	key.DNSDomain, key.TrustDomain = "shop.svc.cluster.local", "cluster.local"
	return input.NewView(key, meshtest.State(t, resources...)).Reader()
}

// valid fails the test if the resource does not pass validation.
func valid[T interface {
	proto.Message
	ValidateAll() error
}](t *testing.T, m T, err error) T {
	t.Helper()
	if err == nil {
		err = m.ValidateAll()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func grpcPort(s *configv1.Service) { s.Ports[0].Protocol = configv1.Protocol_PROTOCOL_GRPC }

func dnsService(s *configv1.Service) {
	grpcPort(s)
	s.Resolution, s.MeshExternal = configv1.Resolution_RESOLUTION_DNS, true
}

func virtualService(host string, routes ...*networking.HTTPRoute) *configv1.Resource {
	return meshtest.Config(mesh.KindVirtualService, "shop", "vs", &networking.VirtualService{Hosts: []string{host}, Http: routes})
}

func toReviews() []*networking.HTTPRouteDestination {
	return []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: reviews}}}
}

// A channel's listener names the same route configuration for every form of a host, and does not exist for unknown
// hosts.
func TestServerTargets(t *testing.T) {
	r := grpcClient(t,
		meshtest.Service("shop", reviews, 9080, grpcPort), meshtest.Service("other", "ratings.other.svc.cluster.local", 9080, grpcPort),
		meshtest.Service("shop", "single", 9080, grpcPort),
		meshtest.Service("other", "hidden.other.svc.cluster.local", 9080, meshtest.Visible("other")),
		virtualService("virtual.example.com", &networking.HTTPRoute{Route: toReviews()}),
	)
	for name, want := range map[string]string{
		"reviews:9080":            "outbound|9080||" + reviews,
		"reviews.shop:9080":       "outbound|9080||" + reviews,
		"reviews.shop.svc:9080":   "outbound|9080||" + reviews,
		reviews + ":9080":         "outbound|9080||" + reviews,
		reviews + ".:9080":        "outbound|9080||" + reviews,
		"Reviews:9080":            "outbound|9080||" + reviews,
		"ratings.other:9080":      "outbound|9080||ratings.other.svc.cluster.local",
		"single:9080":             "outbound|9080||single",
		"virtual.example.com:443": "outbound|443||virtual.example.com",
		"ratings:9080":            "",
		"hidden.other:9080":       "",
		"reviews:9081":            "",
		"reviews":                 "",
		"reviews:port":            "",
		"nobody.example.com:443":  "",
	} {
		got, err := listener(r, name)
		if got == nil {
			if err != nil || want != "" {
				t.Errorf("%s: nothing, %v; want %s", name, err, want)
			}
			continue
		}
		valid(t, got, err)
		if got.GetName() != name || routeConfig(t, got) != want {
			t.Errorf("%s: listener %s of %q, want %q", name, got.GetName(), routeConfig(t, got), want)
		}
		if rc, err := routes(r, want); rc == nil {
			t.Errorf("%s: route configuration %s does not exist: %v", name, want, err)
		} else {
			valid(t, rc, err)
		}
	}
}

// Two gRPC clients of different namespaces that name a host in full share the bytes.
func TestFullTargetNamesAreShared(t *testing.T) {
	r := grpcClient(t, meshtest.Service("shop", reviews, 9080, grpcPort))
	if _, err := listener(r, reviews+":9080"); err != nil || r.Scope() != input.MeshScope {
		t.Errorf("reach %d, %v", r.Scope(), err)
	}
	if _, err := listener(r, "reviews:9080"); err != nil || r.Scope() != input.NamespaceScope {
		t.Errorf("short name: reach %d, %v", r.Scope(), err)
	}
}

func TestLoadBalancers(t *testing.T) {
	for name, tc := range map[string]struct {
		policy *networking.LoadBalancerSettings
		want   clusterv3.Cluster_LbPolicy
		list   int
	}{
		"none":        {nil, clusterv3.Cluster_ROUND_ROBIN, 0},
		"random":      {simple(networking.LoadBalancerSettings_RANDOM), clusterv3.Cluster_ROUND_ROBIN, 0},
		"passthrough": {simple(networking.LoadBalancerSettings_PASSTHROUGH), clusterv3.Cluster_ROUND_ROBIN, 0},
		"least":       {simple(networking.LoadBalancerSettings_LEAST_REQUEST), clusterv3.Cluster_ROUND_ROBIN, 2},
		"ring":        {hash(&networking.LoadBalancerSettings_ConsistentHashLB{}), clusterv3.Cluster_RING_HASH, 0},
		"maglev": {
			hash(&networking.LoadBalancerSettings_ConsistentHashLB{HashAlgorithm: &networking.LoadBalancerSettings_ConsistentHashLB_Maglev{}}),
			clusterv3.Cluster_RING_HASH, 0},
		"ring too big": {hash(ringOf(1 << 40)), clusterv3.Cluster_RING_HASH, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rule := &networking.DestinationRule{Host: reviews, TrafficPolicy: &networking.TrafficPolicy{LoadBalancer: tc.policy}}
			r := grpcClient(t, meshtest.Service("shop", reviews, 9080, grpcPort), meshtest.Config(mesh.KindDestinationRule, "shop", "r", rule))
			out, err := cluster(r, "outbound|9080||"+reviews)
			valid(t, out, err)
			if out.GetLbPolicy() != tc.want || len(out.GetLoadBalancingPolicy().GetPolicies()) != tc.list {
				t.Errorf("%s, list %v", out.GetLbPolicy(), out.GetLoadBalancingPolicy())
			}
			if size := out.GetRingHashLbConfig().GetMinimumRingSize().GetValue(); size > maxRingSize {
				t.Errorf("ring of %d", size)
			}
			if out.GetType() != clusterv3.Cluster_EDS || len(out.GetTransportSocketMatches()) > 0 || out.GetTransportSocket() != nil {
				t.Errorf("not for gRPC: %v", out)
			}
		})
	}
}

func simple(lb networking.LoadBalancerSettings_SimpleLB) *networking.LoadBalancerSettings {
	return &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_Simple{Simple: lb}}
}

func hash(lb *networking.LoadBalancerSettings_ConsistentHashLB) *networking.LoadBalancerSettings {
	return &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{ConsistentHash: lb}}
}

func ringOf(size uint64) *networking.LoadBalancerSettings_ConsistentHashLB {
	return &networking.LoadBalancerSettings_ConsistentHashLB{HashAlgorithm: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash_{
		RingHash: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: size},
	}}
}

func TestDNSServicesResolveOneName(t *testing.T) {
	const host, name = "api.example.com", "outbound|443||api.example.com"
	r := grpcClient(t, meshtest.Service("shop", host, 443, dnsService))
	out, err := cluster(r, name)
	valid(t, out, err)
	address := out.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	if out.GetType() != clusterv3.Cluster_LOGICAL_DNS || address.GetAddress() != host || address.GetPortValue() != 443 {
		t.Errorf("got %v", out)
	}
	if assignment, err := endpoints(r, name); assignment != nil || err != nil {
		t.Errorf("endpoints %v, %v", assignment, err)
	}
}

// The server's identities are those of its endpoints.
func TestClientMTLS(t *testing.T) {
	rule := func(mode networking.ClientTLSSettings_TLSmode) *configv1.Resource {
		return meshtest.Config(mesh.KindDestinationRule, "shop", "r", &networking.DestinationRule{
			Host: reviews, TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: mode}},
		})
	}
	service := meshtest.Service("shop", reviews, 9080, grpcPort)
	mtls := identified(meshtest.Endpoints("shop", reviews, 9080, "10.0.0.1", "10.0.0.2"), configv1.TlsMode_TLS_MODE_ISTIO)
	mixed := identified(meshtest.Endpoints("shop", reviews, 9080, "10.0.0.1", "10.0.0.2"), configv1.TlsMode_TLS_MODE_ISTIO)
	mixed.GetEndpointSet().Endpoints[0].TlsMode = configv1.TlsMode_TLS_MODE_DISABLED
	strict := meshtest.PeerAuthentication("shop", "pa", "STRICT")
	for name, tc := range map[string]struct {
		resources []*configv1.Resource
		want, err bool
	}{
		"permissive":             {[]*configv1.Resource{service, mtls}, false, false},
		"strict":                 {[]*configv1.Resource{service, mtls, strict}, true, false},
		"strict, nobody there":   {[]*configv1.Resource{service, strict}, true, false},
		"strict, some outside":   {[]*configv1.Resource{service, mixed, strict}, false, false},
		"strict, rule disables":  {[]*configv1.Resource{service, mtls, strict, rule(networking.ClientTLSSettings_DISABLE)}, false, false},
		"permissive, rule wants": {[]*configv1.Resource{service, mtls, rule(networking.ClientTLSSettings_ISTIO_MUTUAL)}, true, false},
		"rule wants plain TLS":   {[]*configv1.Resource{service, mtls, rule(networking.ClientTLSSettings_SIMPLE)}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := cluster(grpcClient(t, tc.resources...), "outbound|9080||"+reviews)
			if tc.err {
				if err == nil {
					t.Errorf("no error, %v", out)
				}
				return
			}
			valid(t, out, err)
			if (out.GetTransportSocket() != nil) != tc.want {
				t.Errorf("transport socket %v", out.GetTransportSocket())
			}
			if !tc.want || name == "strict, nobody there" {
				return
			}
			tls := &tlsv3.UpstreamTlsContext{}
			if err := out.GetTransportSocket().GetTypedConfig().UnmarshalTo(tls); err != nil {
				t.Fatal(err)
			}
			names := valid(t, tls, nil).GetCommonTlsContext().GetValidationContext().GetMatchSubjectAltNames() //nolint:staticcheck // the field that gRPC reads
			if len(names) != 1 || names[0].GetExact() != "spiffe://cluster.local/ns/shop/sa/reviews" {
				t.Errorf("expects %v", names)
			}
		})
	}
}

// identified sets the identity and the TLS mode of endpoints, and their hashes again.
func identified(r *configv1.Resource, mode configv1.TlsMode) *configv1.Resource {
	for _, e := range r.GetEndpointSet().GetEndpoints() {
		e.Identity, e.TlsMode = "spiffe://cluster.local/ns/shop/sa/reviews", mode
	}
	return meshtest.Resource(r.GetKey().GetKind(), r.GetKey().GetNamespace(), r.GetKey().GetName(), r)
}
