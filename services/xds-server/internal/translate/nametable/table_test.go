package nametable_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

func sidecar(namespace string) *class.Key {
	return &class.Key{Type: class.Sidecar, Namespace: namespace, DNSDomain: namespace + ".svc.cluster.local", DNSCapture: true}
}

func at(addresses ...string) func(*configv1.Service) {
	return func(s *configv1.Service) { s.Addresses = addresses }
}

// headless makes a service a headless Kubernetes Service.
func headless(s *configv1.Service) {
	s.Headless, s.Resolution = true, configv1.Resolution_RESOLUTION_PASSTHROUGH
	s.Source = &configv1.SourceRef{Kind: "Service"}
}

func read(t *testing.T, m proto.Message) map[string][]string {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	table := &ndsv1.NameTable{}
	if err := proto.Unmarshal(raw, table); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for host, what := range table.GetTable() {
		out[host] = what.GetIps()
	}
	return out
}

// build builds a class's table without an engine.
func build(t *testing.T, key *class.Key, resources ...*configv1.Resource) (map[string][]string, *input.Reader) {
	t.Helper()
	state := meshtest.State(t, resources...)
	r := input.NewView(key.WithSidecar(state, key.Labels), state).Reader()
	m, err := nametable.Translator{}.Build(r, nametable.Name)
	if err != nil || m == nil {
		t.Fatalf("%v, %v", m, err)
	}
	return read(t, m), r
}

// pods are endpoints with the host names h-0, h-1, ... and the given health.
func pods(host string, port uint32, health configv1.Health, addresses ...string) *configv1.Resource {
	r := meshtest.Endpoints("data", host, port, addresses...)
	for i, e := range r.GetEndpointSet().GetEndpoints() {
		e.Hostname, e.Health = "h-"+string(rune('0'+i)), health
	}
	return meshtest.Resource(mesh.KindEndpointSet, "data", r.GetKey().GetName(), &configv1.Resource{Body: r.GetBody()})
}

func TestTable(t *testing.T) {
	const (
		web   = "web.shop.svc.cluster.local"
		db    = "db.data.svc.cluster.local"
		ready = configv1.Health_HEALTH_READY
	)
	second := func(s *configv1.Service) {
		s.Ports = append(s.Ports, &configv1.ServicePort{Name: "more", Number: 81, Protocol: configv1.Protocol_PROTOCOL_TCP, TargetPort: 81})
	}
	for name, tc := range map[string]struct {
		mesh []*configv1.Resource
		want map[string][]string
	}{
		"nothing": {nil, map[string][]string{}},
		"both families": {
			[]*configv1.Resource{meshtest.Service("shop", web, 80, at("fd00::1", "10.96.0.1"))},
			map[string][]string{web: {"10.96.0.1", "fd00::1"}},
		},
		"canonical, each once": {
			[]*configv1.Resource{meshtest.Service("shop", web, 80, at("FD00:0::1", "fd00::1"))},
			map[string][]string{web: {"fd00::1"}},
		},
		"what is no address": {
			[]*configv1.Resource{meshtest.Service("shop", web, 80, at("0.0.0.0", "10.0.0.0/8", "fe80::1%eth0", "web.example.com"))},
			map[string][]string{},
		},
		"a range of one": {
			[]*configv1.Resource{meshtest.Service("shop", web, 80, at("10.0.0.1/32", "fd00::1/128"))},
			map[string][]string{web: {"10.0.0.1", "fd00::1"}},
		},
		"allocated": {
			[]*configv1.Resource{meshtest.Service("shop", "a.example.com", 80,
				func(s *configv1.Service) { s.AutoAddresses = []string{"240.0.0.1"} })},
			map[string][]string{"a.example.com": {"240.0.0.1"}},
		},
		"allocated, but given too": {
			[]*configv1.Resource{meshtest.Service("shop", "a.example.com", 80, at("10.0.0.1"),
				func(s *configv1.Service) { s.AutoAddresses = []string{"240.0.0.1"} })},
			map[string][]string{"a.example.com": {"10.0.0.1"}},
		},
		"an alias of another service": {
			[]*configv1.Resource{meshtest.Service("shop", web, 80, at("10.96.0.1")),
				meshtest.Service("shop", "alias.shop.svc.cluster.local", 80, func(s *configv1.Service) {
					s.Ports, s.ExternalName = nil, web
				})},
			map[string][]string{web: {"10.96.0.1"}, "alias.shop.svc.cluster.local": {"10.96.0.1"}},
		},
		"wildcard": {
			[]*configv1.Resource{meshtest.Service("shop", "*.example.com", 80, at("10.0.0.1"))},
			map[string][]string{"*.example.com": {"10.0.0.1"}},
		},
		"endpoints are no address of a service that is not headless": {
			[]*configv1.Resource{meshtest.Service("data", db, 80), pods(db, 80, ready, "10.1.0.1")},
			map[string][]string{},
		},
		"headless over all ports": {
			[]*configv1.Resource{
				meshtest.Service("data", db, 80, headless, second), meshtest.Endpoints("data", db, 80, "10.1.0.2"),
				meshtest.Endpoints("data", db, 81, "10.1.0.1", "10.1.0.2"),
			},
			map[string][]string{db: {"10.1.0.1", "10.1.0.2"}},
		},
		"headless, nobody is ready": {
			[]*configv1.Resource{meshtest.Service("data", db, 80, headless), pods(db, 80, configv1.Health_HEALTH_NOT_READY, "10.1.0.1")},
			map[string][]string{},
		},
		"headless, whoever is ready": {
			[]*configv1.Resource{
				meshtest.Service("data", db, 80, headless, func(s *configv1.Service) { s.PublishNotReadyAddresses = true }),
				pods(db, 80, configv1.Health_HEALTH_NOT_READY, "10.1.0.1"),
			},
			map[string][]string{db: {"10.1.0.1"}, "h-0." + db: {"10.1.0.1"}},
		},
		"headless, draining": {
			[]*configv1.Resource{meshtest.Service("data", db, 80, headless), pods(db, 80, configv1.Health_HEALTH_DRAINING, "10.1.0.1")},
			map[string][]string{},
		},
		"pods": {
			[]*configv1.Resource{meshtest.Service("data", db, 80, headless, second), pods(db, 80, ready, "10.1.0.2", "10.1.0.1"),
				pods(db, 81, ready, "10.1.0.2", "fd00::1")},
			map[string][]string{db: {"10.1.0.1", "10.1.0.2", "fd00::1"}, "h-0." + db: {"10.1.0.2"}, "h-1." + db: {"10.1.0.1", "fd00::1"}},
		},
		"a service's own host beats a pod's": {
			[]*configv1.Resource{
				meshtest.Service("data", db, 80, headless), pods(db, 80, ready, "10.1.0.1", "10.1.0.2"),
				meshtest.Service("data", "h-0."+db, 80, at("10.9.0.1")),
			},
			map[string][]string{db: {"10.1.0.1", "10.1.0.2"}, "h-0." + db: {"10.9.0.1"}, "h-1." + db: {"10.1.0.2"}},
		},
		"sockets": {
			[]*configv1.Resource{meshtest.Service("data", db, 80, headless), pods(db, 80, ready, "/run/db.sock")},
			map[string][]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := build(t, sidecar("shop"), tc.mesh...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			slices.Reverse(tc.mesh)
			if again, _ := build(t, sidecar("shop"), tc.mesh...); !cmp.Equal(got, again) {
				t.Error("the order of arrival matters")
			}
		})
	}
}

// Agents answer short names only for hosts of Kubernetes.
func TestRegistryFollowsTheSource(t *testing.T) {
	kind := func(kind string) func(*configv1.Service) {
		return func(s *configv1.Service) { s.Name, s.Source = "web", &configv1.SourceRef{Kind: kind} }
	}
	state := meshtest.State(t,
		meshtest.Service("shop", "web.shop.svc.cluster.local", 80, at("10.0.0.1"), kind("Service")),
		meshtest.Service("shop", "web.example.com", 80, at("10.0.0.2"), kind("ServiceEntry")),
	)
	m, err := nametable.Translator{}.Build(input.NewView(sidecar("shop"), state).Reader(), nametable.Name)
	if err != nil {
		t.Fatal(err)
	}
	want := &ndsv1.NameTable{Table: map[string]*ndsv1.NameTable_NameInfo{
		"web.shop.svc.cluster.local": {Ips: []string{"10.0.0.1"}, Registry: "Kubernetes", Shortname: "web", Namespace: "shop"},
		"web.example.com":            {Ips: []string{"10.0.0.2"}, Registry: "External"},
	}}
	if !proto.Equal(m, want) {
		t.Errorf("got %v", m)
	}
	if m, err := (nametable.Translator{}).Build(input.NewView(sidecar("shop"), state).Reader(), "another"); m != nil || err != nil {
		t.Errorf("a resource of another name: %v, %v", m, err)
	}
}

// The table has the hosts that the class may address, and is shared by all classes that may address the same.
func TestTableHasVisibleServices(t *testing.T) {
	mesh := []*configv1.Resource{
		meshtest.Service("shop", "open", 80, at("10.0.0.1")),
		meshtest.Service("data", "private", 80, at("10.0.0.2"), meshtest.Visible("data")),
		meshtest.Service("data", "twice", 80, at("10.0.0.3")), meshtest.Service("shop", "twice", 80, at("10.0.0.4")),
		meshtest.Config(mesh.KindSidecar, "lean", "s",
			&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"data/*"}}}}),
	}
	for _, tc := range []struct {
		namespace string
		want      map[string][]string
		scope     input.Scope
	}{
		{"elsewhere", map[string][]string{"open": {"10.0.0.1"}, "twice": {"10.0.0.3"}}, input.MeshScope},
		{"shop", map[string][]string{"open": {"10.0.0.1"}, "twice": {"10.0.0.4"}}, input.MeshScope},
		{"data", map[string][]string{"open": {"10.0.0.1"}, "private": {"10.0.0.2"}, "twice": {"10.0.0.3"}}, input.MeshScope},
		{"lean", map[string][]string{"twice": {"10.0.0.3"}}, input.NamespaceScope},
	} {
		t.Run(tc.namespace, func(t *testing.T) {
			got, r := build(t, sidecar(tc.namespace), mesh...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if r.Scope() != tc.scope {
				t.Errorf("holds for %v, want %v", r.Scope(), tc.scope)
			}
		})
	}
}

// TestHostOfAllClusters: a headless host of all clusters together leads to the endpoints that the client's cluster
// sees, and to each Pod with a host name by the name of its cluster. Short names stay those of the ordinary host.
func TestHostOfAllClusters(t *testing.T) {
	const ready = configv1.Health_HEALTH_READY
	host := contract.ClusterSetHost("db", "data")
	in := func(cluster string, only bool, address string) *configv1.Resource {
		set := pods(host, 80, ready, address).GetEndpointSet()
		set.Cluster, set.ClusterOnly = cluster, only
		return meshtest.Resource(mesh.KindEndpointSet, "data", contract.EndpointSetName(set),
			&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
	}
	svc := meshtest.Service("data", host, 80, headless, func(s *configv1.Service) {
		s.Name = "db"
		s.ClusterAddresses = []*configv1.ClusterAddresses{{Cluster: "west"}, {Cluster: "East"}}
	})
	state := meshtest.State(t, svc, in("west", false, "10.1.0.1"), in("East", false, "10.2.0.1"), in("south", true, "10.3.0.1"))
	key := sidecar("shop")
	key.Cluster = "west"
	m, err := nametable.Translator{}.Build(input.NewView(key.WithSidecar(state, nil), state).Reader(), nametable.Name)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{host: {"10.1.0.1", "10.2.0.1"}, "h-0.west." + host: {"10.1.0.1"}, "h-0.east." + host: {"10.2.0.1"}}
	if diff := cmp.Diff(want, read(t, m)); diff != "" {
		t.Error(diff)
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	sent := &ndsv1.NameTable{}
	if err := proto.Unmarshal(raw, sent); err != nil {
		t.Fatal(err)
	}
	for name, what := range sent.GetTable() {
		if what.GetShortname() != "" || what.GetNamespace() != "" {
			t.Errorf("%s has the short name %s.%s", name, what.GetShortname(), what.GetNamespace())
		}
	}
}
