package endpoint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// shard are the endpoints of port 80 in a cluster and network.
func shard(host, cluster, network, address string) *configv1.Resource {
	set := &configv1.EndpointSet{
		Hostname: host, Port: 80, Cluster: cluster, LabelSets: []*configv1.LabelSet{{}}, Localities: []*configv1.Locality{{}},
		Endpoints: []*configv1.Endpoint{{Address: address, Port: 80, Network: network, Health: configv1.Health_HEALTH_READY,
			TlsMode: configv1.TlsMode_TLS_MODE_ISTIO}},
	}
	return meshtest.Resource(mesh.KindEndpointSet, "default", host+":80/"+cluster,
		&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
}

func TestEndpointsOfSeveralClusters(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	entrance := func(name, cluster, address string) *configv1.Resource {
		return meshtest.Service("gateways", name+".gateways.svc.cluster.local", 15443, func(s *configv1.Service) {
			s.NetworkGateway = &configv1.NetworkGateway{Network: "n1", Cluster: "west", Addresses: []string{"192.0.2.1"}, Port: 15443}
			s.MoreNetworkGateways = []*configv1.NetworkGateway{{Network: "n2", Cluster: cluster, Addresses: []string{address}, Port: 15443}}
		})
	}
	local := func(s *configv1.Service) { s.ClusterLocal = true }
	for name, c := range map[string]struct {
		network, cluster string
		change           []func(*configv1.Service)
		more             []*configv1.Resource
		want             string
	}{
		"all are used":           {"", "west", nil, nil, "10.0.0.1:80 10.0.1.1:80 10.0.2.1:80"},
		"of a cluster-local one": {"", "west", []func(*configv1.Service){local}, nil, "10.0.0.1:80"},
		"for a client elsewhere": {"", "east", []func(*configv1.Service){local}, nil, "10.0.1.1:80"},
		"gateways of their cluster": {"n1", "west", nil,
			[]*configv1.Resource{entrance("one", "east", "192.0.2.2"), entrance("two", "south", "192.0.2.3")},
			"10.0.0.1:80 192.0.2.2:15443 192.0.2.3:15443"},
		"gateways of the network": {"n1", "west", nil, []*configv1.Resource{entrance("one", "east", "192.0.2.2")},
			"10.0.0.1:80 192.0.2.2:15443"},
		"from the other side": {"n2", "east", nil, []*configv1.Resource{entrance("one", "east", "192.0.2.2")},
			"10.0.1.1:80 10.0.2.1:80 192.0.2.1:15443"},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, append(c.more, meshtest.Service("default", host, 80, c.change...),
				shard(host, "west", "n1", "10.0.0.1"), shard(host, "east", "n2", "10.0.1.1"), shard(host, "south", "n2", "10.0.2.1"))...)
			key := &class.Key{Type: class.Sidecar, Namespace: "default", Network: c.network, Cluster: c.cluster, Families: class.IPv4}
			m, err := endpoint.Translator{}.Build(input.NewView(key, state).Reader(), resourcename.OutboundCluster(80, "", host))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
				for _, e := range l.GetLbEndpoints() {
					at := e.GetEndpoint().GetAddress().GetSocketAddress()
					got = append(got, fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()))
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), c.want)
			}
		})
	}
}
