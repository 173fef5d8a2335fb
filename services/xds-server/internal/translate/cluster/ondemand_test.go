package cluster_test

import (
	"fmt"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/cluster"
)

func service(host string, port uint32, p configv1.Protocol, addresses []string, change ...func(*configv1.Service)) *configv1.Resource {
	return meshtest.Service("default", host, port, append([]func(*configv1.Service){func(s *configv1.Service) {
		s.Ports[0].Protocol, s.Addresses = p, addresses
	}}, change...)...)
}

func headless(s *configv1.Service) { s.Headless = true }

func younger(s *configv1.Service) {
	s.CreationTime = timestamppb.New(meshtest.Epoch.Add(time.Hour))
}

func TestOnDemandClusterIsThatOfTheService(t *testing.T) {
	const tcp, tls, sniffed = configv1.Protocol_PROTOCOL_TCP, configv1.Protocol_PROTOCOL_TLS, configv1.Protocol_PROTOCOL_UNSPECIFIED
	resources := []*configv1.Resource{
		service("db.svc", 3306, tcp, []string{"10.0.0.1"}),
		service("young.svc", 3306, tcp, []string{"10.0.0.1"}, younger),
		service("six.svc", 3306, tcp, []string{"fd00::1"}),
		service("anywhere.svc", 9000, tcp, nil),
		service("sniffed.svc", 80, sniffed, []string{"10.0.0.2"}),
		service("web.svc", 81, configv1.Protocol_PROTOCOL_HTTP, []string{"10.0.0.2"}),
		service("pods.svc", 5000, tcp, nil, headless), meshtest.Endpoints("default", "pods.svc", 5000, "10.1.0.1"),
		service("www.example.com", 443, tls, nil),
		service("*.example.com", 443, tls, nil),
		service("placed.example.com", 443, tls, []string{"10.0.0.3"}),
		service("other.example.com", 444, tls, nil),
		service("foreign.svc", 3307, tcp, []string{"10.0.0.1"}, meshtest.Visible("elsewhere")),
	}
	for _, tc := range []struct{ name, want string }{
		{"ondemand|tcp|10.0.0.1|3306", "outbound|3306||db.svc"},
		{"ondemand|tcp|fd00::1|3306", "outbound|3306||six.svc"},
		{"ondemand|tcp|10.0.0.9|3306", ""},
		{"ondemand|tcp|10.0.0.1|3307", ""},
		{"ondemand|tcp|10.0.0.9|9000", "outbound|9000||anywhere.svc"},
		{"ondemand|tcp|10.0.0.2|80", "outbound|80||sniffed.svc"},
		{"ondemand|tcp|10.0.0.2|81", ""},
		{"ondemand|tcp|10.1.0.1|5000", "outbound|5000||pods.svc"},
		{"ondemand|tcp|10.1.0.2|5000", ""},
		{"ondemand|tls|93.184.216.34|443|www.example.com", "outbound|443||www.example.com"},
		{"ondemand|tls|93.184.216.34|443|WWW.Example.com", "outbound|443||www.example.com"},
		{"ondemand|tls|93.184.216.34|443|a.b.example.com", "outbound|443||*.example.com"},
		{"ondemand|tls|93.184.216.34|443|example.org", ""},
		{"ondemand|tls|93.184.216.34|443|-", ""},
		{"ondemand|tls|93.184.216.34|443|a|b", ""},
		{"ondemand|tls|93.184.216.34|444|www.example.com", ""},
		{"ondemand|tls|93.184.216.34|444|other.example.com", "outbound|444||other.example.com"},
		{"ondemand|tls|10.0.0.3|443|www.example.com", "outbound|443||placed.example.com"},
		{"ondemand|tcp|93.184.216.34|443", ""},
	} {
		for _, policy := range []meshv1alpha1.MeshConfig_OutboundTrafficPolicy_Mode{
			meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY, meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		} {
			t.Run(fmt.Sprint(tc.name, " ", policy), func(t *testing.T) {
				mesh := meshtest.Mesh(&meshv1alpha1.MeshConfig{OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: policy}})
				key := &class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect, VirtualHosts: true, OnDemand: true}
				r := input.NewView(key, meshtest.State(t, append(resources, mesh)...)).Reader()
				got := build(t, r, tc.name)
				if err := got.ValidateAll(); err != nil {
					t.Error(err)
				}
				if got.GetName() != tc.name || r.Scope() != input.MeshScope {
					t.Errorf("%q, holds for %v", got.GetName(), r.Scope())
				}
				switch {
				case tc.want != "":
					if got.GetEdsClusterConfig().GetServiceName() != tc.want || got.GetAltStatName() != tc.want {
						t.Errorf("got %v, want the endpoints of %s", got, tc.want)
					}
				case policy == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY:
					if got.GetType() != clusterv3.Cluster_ORIGINAL_DST {
						t.Errorf("got %v, want pass-through", got)
					}
				default:
					if got.GetType() != clusterv3.Cluster_STATIC || got.GetLoadAssignment() != nil {
						t.Errorf("got %v, want a cluster of nothing", got)
					}
				}
			})
		}
	}
}

func build(t *testing.T, r *input.Reader, name string) *clusterv3.Cluster {
	t.Helper()
	m, err := cluster.Translator{}.Build(r, name)
	if err != nil || m == nil {
		t.Fatalf("%s: %v, %v", name, m, err)
	}
	return m.(*clusterv3.Cluster)
}

// Services that the Sidecar does not import are unknown destinations.
func TestOnDemandClusterObeysTheSidecar(t *testing.T) {
	state := meshtest.State(t,
		service("db.svc", 3306, configv1.Protocol_PROTOCOL_TCP, []string{"10.0.0.1"}),
		service("*.example.com", 443, configv1.Protocol_PROTOCOL_TLS, nil),
		meshtest.Config(mesh.KindSidecar, "default", "s", &networking.Sidecar{Egress: []*networking.IstioEgressListener{
			{Hosts: []string{"./other.svc"}},
			{Hosts: []string{"*/*"}, Port: &networking.SidecarPort{Number: 7000, Protocol: "TCP"}},
		}}),
	)
	key := &class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect, OnDemand: true}
	for _, name := range []string{"ondemand|tcp|10.0.0.1|3306", "ondemand|tls|10.0.0.1|443|www.example.com"} {
		if got := build(t, input.NewView(key.WithSidecar(state, nil), state).Reader(), name); got.GetType() != clusterv3.Cluster_ORIGINAL_DST {
			t.Errorf("%s: %v, want pass-through", name, got)
		}
	}
}

// An on-demand sidecar is sent the built-in clusters only, and can request all others; for other sidecars there are no
// clusters of connections.
func TestOnDemandProxiesListOnlyBuiltinClusters(t *testing.T) {
	state := meshtest.State(t, service("db.svc", 3306, configv1.Protocol_PROTOCOL_TCP, []string{"10.0.0.1"}))
	for _, onDemand := range []bool{false, true} {
		key := &class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect, OnDemand: onDemand}
		found, err := cluster.Translator{}.HostNames(input.NewView(key, state).Reader(), "db.svc")
		if err != nil || (len(found) == 0) != onDemand {
			t.Errorf("on demand %v: %q, %v", onDemand, found, err)
		}
		m, err := cluster.Translator{}.Build(input.NewView(key, state).Reader(), "ondemand|tcp|10.0.0.1|3306")
		if err != nil || (m != nil) != onDemand {
			t.Errorf("on demand %v: %v, %v", onDemand, m, err)
		}
		if m := build(t, input.NewView(key, state).Reader(), "outbound|3306||db.svc"); m.GetType() != clusterv3.Cluster_EDS {
			t.Errorf("on demand %v: %v", onDemand, m)
		}
	}
}
