package endpoint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Gateways have the weight of the endpoints that they replace, and replace only endpoints that are called with mesh
// TLS.
func TestOtherNetworksAreReachedThroughGateways(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	istio, plain := configv1.TlsMode_TLS_MODE_ISTIO, configv1.TlsMode_TLS_MODE_DISABLED
	endpoints := meshtest.Endpoints("default", host, 80, "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "")
	for i, e := range endpoints.GetEndpointSet().GetEndpoints() {
		e.Network = []string{"n1", "n2", "n2", "n2", "n3", "", "n3"}[i]
		e.TlsMode = []configv1.TlsMode{istio, istio, istio, plain, istio, istio, istio}[i]
		e.Weight = []uint32{0, 0, 2, 0, 0, 0, 0}[i]
	}
	entrance := func(name, network string, port uint32, addresses ...string) *configv1.Resource {
		return meshtest.Service("gateways", name+".gateways.svc.cluster.local", 15443, func(s *configv1.Service) {
			s.NetworkGateway = &configv1.NetworkGateway{Network: network, Addresses: addresses, Port: port}
		})
	}
	two := entrance("two", "n2", 15443, "192.0.2.1", "192.0.2.2", "fd00::1")
	stated := meshtest.Mesh(&meshv1alpha1.MeshConfig{}, &configv1.NetworkGateway{Network: "n2", Addresses: []string{"192.0.2.7"}, Port: 15443})
	rule := func(mode networking.ClientTLSSettings_TLSmode) *configv1.Resource {
		return meshtest.Config(mesh.KindDestinationRule, "default", "a", &networking.DestinationRule{
			Host: host, TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: mode}},
		})
	}
	const direct = "10.0.0.1:80=1 10.0.0.2:80=2 10.0.0.3:80=1 10.0.0.4:80=1 10.0.0.5:80=1"
	for name, tc := range map[string]struct {
		network string
		more    []*configv1.Resource
		want    string
	}{
		"no gateways":            {"n1", nil, direct},
		"a client of no network": {"", []*configv1.Resource{two}, direct},
		"gateways": {"n1", []*configv1.Resource{two},
			"10.0.0.1:80=2 10.0.0.4:80=2 10.0.0.5:80=2 192.0.2.1:15443=3 192.0.2.2:15443=3"},
		"gateways of two networks": {"n1", []*configv1.Resource{two, entrance("three", "n3", 443, "192.0.2.3")},
			"10.0.0.1:80=2 10.0.0.5:80=2 192.0.2.1:15443=3 192.0.2.2:15443=3 192.0.2.3:443=4"},
		"gateways of the mesh configuration": {"n1", []*configv1.Resource{stated}, "10.0.0.1:80=1 10.0.0.4:80=1 10.0.0.5:80=1 192.0.2.7:15443=3"},
		"gateways of both": {"n1", []*configv1.Resource{entrance("two", "n2", 15443, "192.0.2.1"), stated},
			"10.0.0.1:80=2 10.0.0.4:80=2 10.0.0.5:80=2 192.0.2.1:15443=3 192.0.2.7:15443=3"},
		"from inside":         {"n2", []*configv1.Resource{two}, direct},
		"gateways of its own": {"n1", []*configv1.Resource{entrance("one", "n1", 15443, "192.0.2.9")}, direct},
		"out of the family":   {"n1", []*configv1.Resource{entrance("two", "n2", 15443, "fd00::1")}, direct},
		"plaintext": {"n1", []*configv1.Resource{two, rule(networking.ClientTLSSettings_DISABLE)},
			"10.0.0.1:80=2 10.0.0.4:80=2 10.0.0.5:80=2"},
		"mesh TLS for all": {"n1", []*configv1.Resource{two, rule(networking.ClientTLSSettings_ISTIO_MUTUAL)},
			"10.0.0.1:80=2 10.0.0.4:80=2 10.0.0.5:80=2 192.0.2.1:15443=4 192.0.2.2:15443=4"},
		"no automatic mTLS": {"n1",
			[]*configv1.Resource{two, meshtest.Mesh(&meshv1alpha1.MeshConfig{EnableAutoMtls: wrapperspb.Bool(false)})},
			"10.0.0.1:80=2 10.0.0.4:80=2 10.0.0.5:80=2"},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, append([]*configv1.Resource{meshtest.Service("default", host, 80), endpoints}, tc.more...)...)
			key := &class.Key{Type: class.Sidecar, Namespace: "default", Network: tc.network, Families: class.IPv4}
			m, err := endpoint.Translator{}.Build(input.NewView(key, state).Reader(), resourcename.OutboundCluster(80, "", host))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints()[0].GetLbEndpoints() {
				at := e.GetEndpoint().GetAddress().GetSocketAddress()
				got = append(got, fmt.Sprintf("%s:%d=%d", at.GetAddress(), at.GetPortValue(), e.GetLoadBalancingWeight().GetValue()))
				if socket := e.GetMetadata().GetFilterMetadata()[endpoint.TransportSocketMatch]; strings.HasPrefix(at.GetAddress(), "192.") &&
					socket == nil {
					t.Errorf("no mesh TLS to %s", at.GetAddress())
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tc.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), tc.want)
			}
		})
	}
}

func TestNetworkSplitsClassesOnlyWithGateways(t *testing.T) {
	n := &class.Node{Type: class.Sidecar, Name: "w", Namespace: "default", Metadata: map[string]string{"NETWORK": "claimed"}}
	known := meshtest.State(t, meshtest.Workload("default", "w", "10.0.0.1", func(w *configv1.Workload) { w.Network = "n1" }))
	before, topics := n.Key(known)
	lead := meshtest.Service("gateways", "e.gateways.svc.cluster.local", 15443, func(s *configv1.Service) {
		s.NetworkGateway = &configv1.NetworkGateway{Network: "n2", Addresses: []string{"192.0.2.1"}, Port: 15443}
	})
	state, change := known.Apply(nil, []*configv1.Resource{lead}, nil)
	after, _ := n.Key(state)
	if before.Network != "" || after.Network != "n1" {
		t.Errorf("%q without gateways, %q with them", before.Network, after.Network)
	}
	if !topics.Meets(change.Topics) {
		t.Error("none of the class's topics was touched")
	}
}
