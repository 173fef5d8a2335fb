package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

const host = "a.default.svc.cluster.local"

// reader returns a Reader of a mesh with one service and its shards.
func reader(t *testing.T, svc *configv1.Service, shards ...*configv1.EndpointSet) *input.Reader {
	t.Helper()
	return familyReader(t, class.DualStack, svc, shards...)
}

// familyReader is reader for a proxy with these IP families.
func familyReader(t *testing.T, f class.Families, svc *configv1.Service, shards ...*configv1.EndpointSet) *input.Reader {
	t.Helper()
	svc.Hostname, svc.Name, svc.Namespace, svc.ExportedTo = host, "a", "default", []string{"*"}
	svc.Ports = []*configv1.ServicePort{{Number: 80, Protocol: configv1.Protocol_PROTOCOL_HTTP}}
	if svc.GetResolution() == 0 {
		svc.Resolution = configv1.Resolution_RESOLUTION_STATIC
	}
	resources := []*configv1.Resource{{
		Key:  &configv1.ResourceKey{Kind: "Service", Namespace: "default", Name: host},
		Body: &configv1.Resource_Service{Service: svc},
	}}
	for _, shard := range shards {
		shard.Hostname, shard.Port = host, 80
		resources = append(resources, &configv1.Resource{
			Key:  &configv1.ResourceKey{Kind: "EndpointSet", Namespace: "default", Name: fmt.Sprintf("%s:80/%s", host, shard.GetCluster())},
			Body: &configv1.Resource_EndpointSet{EndpointSet: shard},
		})
	}
	state, err := mesh.FromResources(resources)
	if err != nil {
		t.Fatal(err)
	}
	key := &class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect, TrustDomain: "cluster.local", Families: f}
	return input.NewView(key, state).Reader()
}

func assignment(t *testing.T, r *input.Reader) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	c, ok := discovery.Resolve(r, resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Hostname: host})
	if !ok {
		t.Fatal("no such cluster")
	}
	return Assignment(r, c)
}

func listed(a *endpointv3.ClusterLoadAssignment) string {
	var out []string
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			out = append(out, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()+e.GetEndpoint().GetAddress().GetPipe().GetPath())
		}
	}
	return strings.Join(out, " ")
}

func shard(cluster string, endpoints ...*configv1.Endpoint) *configv1.EndpointSet {
	for _, e := range endpoints {
		if e.GetHealth() == 0 {
			e.Health = configv1.Health_HEALTH_READY
		}
		if e.GetPort() == 0 && !strings.HasPrefix(e.GetAddress(), "/") {
			e.Port = 80
		}
	}
	return &configv1.EndpointSet{Cluster: cluster, Endpoints: endpoints, LabelSets: []*configv1.LabelSet{{}},
		Localities: []*configv1.Locality{{}}}
}

func TestBytesDoNotDependOnShards(t *testing.T) {
	one := reader(t, &configv1.Service{}, shard("east", &configv1.Endpoint{Address: "10.0.0.2"}),
		shard("west", &configv1.Endpoint{Address: "10.0.0.1"}))
	other := reader(t, &configv1.Service{}, shard("east", &configv1.Endpoint{Address: "10.0.0.1"}),
		shard("west", &configv1.Endpoint{Address: "10.0.0.2"}))
	if a, b := assignment(t, one), assignment(t, other); !proto.Equal(a, b) {
		t.Errorf("%v differs from %v", a, b)
	}
}

func TestReadyEndpointsGetTraffic(t *testing.T) {
	endpoints := func() *configv1.EndpointSet {
		return shard("c",
			&configv1.Endpoint{Address: "10.0.0.1"},
			&configv1.Endpoint{Address: "10.0.0.1"},
			&configv1.Endpoint{Address: "10.0.0.2", Health: configv1.Health_HEALTH_NOT_READY},
			&configv1.Endpoint{Address: "10.0.0.3", Health: configv1.Health_HEALTH_DRAINING},
			&configv1.Endpoint{Address: "name.example.com"},
			&configv1.Endpoint{Address: "/run/app.sock"},
			&configv1.Endpoint{Address: "fd00::1"},
		)
	}
	for _, tc := range []struct {
		name string
		svc  *configv1.Service
		want string
	}{
		{"ready ones, each once, addresses only", &configv1.Service{}, "/run/app.sock 10.0.0.1 10.0.0.3 fd00::1"},
		{"not ready ones where they are published", &configv1.Service{PublishNotReadyAddresses: true},
			"/run/app.sock 10.0.0.1 10.0.0.2 10.0.0.3 fd00::1"},
		{"names where the proxy resolves", &configv1.Service{Resolution: configv1.Resolution_RESOLUTION_DNS},
			"/run/app.sock 10.0.0.1 10.0.0.3 fd00::1 name.example.com"},
		{"one where only one can be", &configv1.Service{Resolution: configv1.Resolution_RESOLUTION_DNS_ROUND_ROBIN}, "/run/app.sock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := assignment(t, reader(t, tc.svc, endpoints()))
			if listed(got) != tc.want {
				t.Errorf("got %q, want %q", listed(got), tc.want)
			}
			for _, l := range got.GetEndpoints() {
				for _, e := range l.GetLbEndpoints() {
					draining := e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress() == "10.0.0.3"
					if (e.GetHealthStatus() == corev3.HealthStatus_DRAINING) != draining {
						t.Errorf("%v", e)
					}
				}
			}
		})
	}
}

func TestMalformedIndicesDoNotPanic(t *testing.T) {
	bad := shard("c", &configv1.Endpoint{Address: "10.0.0.1", LabelSet: 7, Locality: 9})
	if got := listed(assignment(t, reader(t, &configv1.Service{}, bad))); got != "10.0.0.1" {
		t.Errorf("got %q", got)
	}
}

func TestOwnNameStandsInForEndpoints(t *testing.T) {
	r := reader(t, &configv1.Service{Resolution: configv1.Resolution_RESOLUTION_DNS})
	if got := listed(assignment(t, r)); got != host {
		t.Errorf("got %q", got)
	}
	r = reader(t, &configv1.Service{Resolution: configv1.Resolution_RESOLUTION_DNS, Selector: map[string]string{"app": "gone"}})
	if got := listed(assignment(t, r)); got != "" {
		t.Errorf("workloads that are gone leave %q", got)
	}
}

func TestEndpointsOfTheProxysFamilies(t *testing.T) {
	endpoints := func() *configv1.EndpointSet {
		return shard("c",
			&configv1.Endpoint{Address: "10.0.0.1", AdditionalAddresses: []string{"fd00::1"}}, &configv1.Endpoint{Address: "10.0.0.2"},
			&configv1.Endpoint{Address: "fd00::3"})
	}
	for f, want := range map[class.Families]string{
		class.IPv4: "10.0.0.1 10.0.0.2", class.IPv6: "fd00::1 fd00::3", class.DualStack: "10.0.0.1 10.0.0.2 fd00::3",
	} {
		got := assignment(t, familyReader(t, f, &configv1.Service{}, endpoints()))
		if listed(got) != want {
			t.Errorf("%v: %s, want %s", f, listed(got), want)
		}
		more := got.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAdditionalAddresses()
		if (len(more) == 1) != (f == class.DualStack) {
			t.Errorf("%v: additional addresses %v", f, more)
		}
	}
}

func TestWithin(t *testing.T) {
	here := parseLocality("r1/z1/s1")
	for pattern, want := range map[string]bool{
		"*": true, "r1": true, "r1/*": true, "r1/z1": true, "r1/z1/*": true, "r1/z1/s1": true,
		"r2": false, "r1/z2/*": false, "r1/z1/s2": false,
	} {
		if within(here, pattern) != want {
			t.Errorf("%s: %v", pattern, !want)
		}
	}
}

func group(name string, weight uint32) *endpointv3.LocalityLbEndpoints {
	out := byLocality([]meshEndpoint{{Endpoint: &configv1.Endpoint{Address: "10.0.0.1", Port: 80, Weight: weight}}})[0]
	out.Locality = parseLocality(name)
	return out
}

func TestDistribute(t *testing.T) {
	out := &endpointv3.ClusterLoadAssignment{Endpoints: []*endpointv3.LocalityLbEndpoints{
		group("r1/z1/s1", 1), group("r1/z1/s2", 3), group("r1/z2/s1", 1), group("r2/z1/s1", 1),
	}}
	distribute(out, parseLocality("r1/z1/s1"), []*networking.LocalityLoadBalancerSetting_Distribute{
		{From: "r9/*", To: map[string]uint32{"r9/*": 100}},
		{From: "r1/z1/*", To: map[string]uint32{"r1/*": 20, "r1/z1/*": 80, "r2/*": 0}},
	})
	var got []string
	for _, l := range out.GetEndpoints() {
		got = append(got, fmt.Sprintf("%s/%s/%s=%d", l.GetLocality().GetRegion(), l.GetLocality().GetZone(), l.GetLocality().GetSubZone(),
			l.GetLoadBalancingWeight().GetValue()))
	}
	want := []string{"r1/z1/s1=20", "r1/z1/s2=60", "r1/z2/s1=20"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: the more specific share first, divided by weight, nothing for who is not named", got, want)
	}
}

func TestFailoverPriority(t *testing.T) {
	members := []meshEndpoint{
		{Endpoint: &configv1.Endpoint{Address: "10.0.0.1"}, labels: map[string]string{"net": "a", "zone": "x"}},
		{Endpoint: &configv1.Endpoint{Address: "10.0.0.2"}, labels: map[string]string{"net": "a", "zone": "y"}},
		{Endpoint: &configv1.Endpoint{Address: "10.0.0.3"}, labels: map[string]string{"net": "b", "zone": "x"}},
	}
	out := &endpointv3.ClusterLoadAssignment{Endpoints: byLocality(members)}
	own := func() map[string]string { return map[string]string{"net": "a", "zone": "x"} }
	failoverPriority(out, members, own, []string{"net", "zone"})
	var got []string
	for _, l := range out.GetEndpoints() {
		got = append(got, fmt.Sprintf("%d:%s", l.GetPriority(), l.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress()))
	}
	if want := []string{"0:10.0.0.1", "1:10.0.0.2", "2:10.0.0.3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	failoverPriority(out, members, nil, []string{"net=b"})
	if out.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.3" {
		t.Errorf("an entry with a value compares with that value: %v", out)
	}
}

// The mesh's data on where an endpoint runs counts as labels, before the workload's own.
func TestTopologyCountsAsLabels(t *testing.T) {
	m := meshEndpoint{
		Endpoint: &configv1.Endpoint{Network: "n1"}, cluster: "east", locality: &configv1.Locality{Region: "r1"},
		labels: map[string]string{"app": "a", class.NetworkLabel: "own", class.ZoneLabel: "own"},
	}
	for _, tc := range []struct {
		labels map[string]string
		want   bool
	}{
		{nil, true},
		{map[string]string{"app": "a", class.RegionLabel: "r1", class.ClusterLabel: "east"}, true},
		{map[string]string{class.NetworkLabel: "n1", class.ZoneLabel: "own"}, true},
		{map[string]string{class.NetworkLabel: "own"}, false},
		{map[string]string{class.SubzoneLabel: ""}, false},
	} {
		if m.matches(tc.labels) != tc.want {
			t.Errorf("%v: %v", tc.labels, !tc.want)
		}
	}
}

func TestFirstFailoverEntryOfARegionCounts(t *testing.T) {
	settings := []*networking.LocalityLoadBalancerSetting_Failover{{From: "r9", To: "r3"}, {From: "r1", To: "r2"}, {From: "r1", To: "r3"}}
	for place, want := range map[string]uint32{"r1/z1/s1": 0, "r1/z1/s2": 1, "r1/z2/s1": 2, "r2/z1/s1": 3, "r3/z1/s1": 4} {
		if got := distance(parseLocality("r1/z1/s1"), parseLocality(place), settings); got != want {
			t.Errorf("%s: %d, want %d", place, got, want)
		}
	}
}
