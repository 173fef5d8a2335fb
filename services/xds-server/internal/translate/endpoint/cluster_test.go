package endpoint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

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

// away is a shard of a cluster that is away, in a region.
func away(r *configv1.Resource) *configv1.Resource {
	r.GetEndpointSet().Away = true
	return r
}

func inRegion(region string, r *configv1.Resource) *configv1.Resource {
	r.GetEndpointSet().Localities = []*configv1.Locality{{Region: region}}
	return r
}

func drained(r *configv1.Resource) *configv1.Resource {
	r.GetEndpointSet().Endpoints[0].Health = configv1.Health_HEALTH_NOT_READY
	return r
}

// Endpoints of a cluster that is away come behind all others, whatever else orders them; a proxy of that cluster keeps
// its order.
func TestEndpointsOfAClusterThatIsAwayComeLast(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	failover := meshtest.Config(mesh.KindDestinationRule, "default", "a", &networking.DestinationRule{Host: host,
		TrafficPolicy: &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{},
			LoadBalancer: &networking.LoadBalancerSettings{LocalityLbSetting: &networking.LocalityLoadBalancerSetting{}}}})
	gateways := meshtest.Service("gateways", "eastwest.gateways.svc.cluster.local", 15443, func(s *configv1.Service) {
		s.NetworkGateway = &configv1.NetworkGateway{Network: "n2", Addresses: []string{"192.0.2.2"}, Port: 15443}
	})
	west, east, south := shard(host, "west", "n1", "10.0.0.1"), shard(host, "east", "n2", "10.0.1.1"), shard(host, "south", "n2", "10.0.2.1")
	for name, c := range map[string]struct {
		network, cluster, locality string
		resources                  []*configv1.Resource
		want                       string
	}{
		"nothing else orders them": {"", "west", "", []*configv1.Resource{west, away(shard(host, "east", "n2", "10.0.1.1")), south},
			"0:10.0.0.1 0:10.0.2.1 1:10.0.1.1"},
		"two are away": {"", "west", "", []*configv1.Resource{west, away(shard(host, "east", "n2", "10.0.1.1")), away(shard(host, "south", "n2", "10.0.2.1"))},
			"0:10.0.0.1 1:10.0.1.1 1:10.0.2.1"},
		"no others are left": {"", "west", "", []*configv1.Resource{away(shard(host, "east", "n2", "10.0.1.1"))}, "0:10.0.1.1"},
		"the others are not ready": {"", "west", "", []*configv1.Resource{drained(shard(host, "west", "n1", "10.0.0.1")),
			away(shard(host, "east", "n2", "10.0.1.1"))}, "0:10.0.1.1"},
		"for proxies of it":                   {"", "east", "", []*configv1.Resource{west, away(shard(host, "east", "n2", "10.0.1.1"))}, "0:10.0.0.1 0:10.0.1.1"},
		"of equal addresses the other counts": {"", "west", "", []*configv1.Resource{away(shard(host, "east", "n2", "10.0.0.1")), west}, "0:10.0.0.1"},
		"nearest, and away": {"", "west", "r2", []*configv1.Resource{failover,
			inRegion("r1", shard(host, "west", "n1", "10.0.0.1")), away(inRegion("r2", shard(host, "east", "n2", "10.0.1.1"))),
			inRegion("r2", shard(host, "south", "n2", "10.0.2.1"))}, "0:10.0.2.1 1:10.0.0.1 2:10.0.1.1"},
		"both are ordered": {"", "west", "r2", []*configv1.Resource{failover,
			inRegion("r1", shard(host, "west", "n1", "10.0.0.1")), away(inRegion("r1", shard(host, "east", "n2", "10.0.1.1"))),
			away(inRegion("r2", shard(host, "south", "n2", "10.0.2.1")))}, "0:10.0.0.1 1:10.0.2.1 2:10.0.1.1"},
		"through one gateway": {"n1", "west", "", []*configv1.Resource{gateways, west, away(shard(host, "east", "n2", "10.0.1.1")), south},
			"0:10.0.0.1 0:192.0.2.2"},
		"through a gateway": {"n1", "west", "", []*configv1.Resource{gateways, west, away(shard(host, "east", "n2", "10.0.1.1"))},
			"0:10.0.0.1 1:192.0.2.2"},
		"none is away": {"", "west", "", []*configv1.Resource{west, east, south}, "0:10.0.0.1 0:10.0.1.1 0:10.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, append(c.resources, meshtest.Service("default", host, 80))...)
			key := &class.Key{Type: class.Sidecar, Namespace: "default", Network: c.network, Cluster: c.cluster, Locality: c.locality,
				Families: class.IPv4}
			m, err := endpoint.Translator{}.Build(input.NewView(key, state).Reader(), resourcename.OutboundCluster(80, "", host))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
				for _, e := range l.GetLbEndpoints() {
					got = append(got, fmt.Sprintf("%d:%s", l.GetPriority(), e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()))
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), c.want)
			}
		})
	}
}

// Endpoints of a cluster that does not export the service are those of its own clients alone.
func TestEndpointsOfClustersThatDoNotExport(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	kept := shard(host, "east", "", "10.0.1.1")
	kept.GetEndpointSet().ClusterOnly = true
	kept = meshtest.Resource(mesh.KindEndpointSet, "default", host+":80/east", &configv1.Resource{Body: kept.GetBody()})
	clustered := func(s *configv1.Service) {
		s.ClusterAddresses = []*configv1.ClusterAddresses{{Cluster: "west"}, {Cluster: "east"}}
	}
	state := meshtest.State(t, kept, shard(host, "west", "", "10.0.0.1"), meshtest.Service("default", host, 80, clustered))
	for cluster, want := range map[string]string{"west": "10.0.0.1", "east": "10.0.0.1 10.0.1.1", "south": "10.0.0.1"} {
		key := &class.Key{Type: class.Sidecar, Namespace: "default", Cluster: cluster, Families: class.IPv4}
		m, err := endpoint.Translator{}.Build(input.NewView(key, state).Reader(), resourcename.OutboundCluster(80, "", host))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				got = append(got, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("from %s: %s, want %s", cluster, strings.Join(got, " "), want)
		}
	}
}
