package wire_test

import (
	"slices"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/tests/bench/internal/wire"
)

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRequestsAreEnvoys(t *testing.T) {
	node := &core.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", Cluster: "a.b"}
	want := &discovery.DeltaDiscoveryRequest{
		Node: node, TypeUrl: wire.Endpoint, ResourceNamesSubscribe: []string{"x", "y"}, ResourceNamesUnsubscribe: []string{"z"},
		InitialResourceVersions: map[string]string{"x": "1", "y": "2"}, ResponseNonce: "7",
	}
	raw := (&wire.Request{
		Node: encode(t, node), Type: wire.Endpoint, Subscribe: []string{"x", "y"}, Unsubscribe: []string{"z"},
		Held: []wire.Held{{"x", "1"}, {"y", "2"}}, Nonce: []byte("7"),
	}).Encode()
	got := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(raw, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got) {
		t.Errorf("want %v\ngot  %v", want, got)
	}
	if id := wire.NodeID(raw); id != node.GetId() {
		t.Errorf("node id %q", id)
	}
	if nonce := wire.AckOf(raw); string(nonce) != "7" {
		t.Errorf("nonce %q", nonce)
	}
}

func TestResponsesAreRead(t *testing.T) {
	manager := &hcm.HttpConnectionManager{
		RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{RouteConfigName: "80"}},
		HttpFilters: []*hcm.HttpFilter{
			{Name: "fetched", ConfigType: &hcm.HttpFilter_ConfigDiscovery{ConfigDiscovery: &core.ExtensionConfigSource{}}}, {Name: "here"},
		},
	}
	chain := &listener.FilterChain{Filters: []*listener.Filter{{ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(t, manager)}}}}
	for _, tc := range []struct {
		name, url string
		resource  proto.Message
		is        func(wire.Response) bool
	}{
		{"EDS cluster", wire.Cluster, &cluster.Cluster{Name: "r", ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS}},
			func(r wire.Response) bool {
				return slices.Equal(r.Endpoints, []string{"r"})
			}},
		{"static cluster", wire.Cluster, &cluster.Cluster{Name: "r"}, func(r wire.Response) bool { return len(r.Endpoints) == 0 }},
		{"listener", wire.Listener, &listener.Listener{Name: "r", DefaultFilterChain: chain}, func(r wire.Response) bool {
			return slices.Equal(r.Routes, []string{"80"}) && slices.Equal(r.Extensions, []string{"fetched"})
		}},
		{"route with VHDS", wire.Route, &route.RouteConfiguration{Name: "r", Vhds: &route.Vhds{}}, func(r wire.Response) bool {
			return slices.Equal(r.Virtual, []string{"r"})
		}},
		{"route", wire.Route, &route.RouteConfiguration{Name: "r"}, func(r wire.Response) bool { return len(r.Virtual) == 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reader := wire.NewReader()
			reader.Record(true)
			message := &discovery.DeltaDiscoveryResponse{
				SystemVersionInfo: "s", TypeUrl: tc.url, Nonce: "1", RemovedResources: []string{"outbound|80|v1|gone.ns.svc"},
				Resources: []*discovery.Resource{{Name: "r", Version: "v", Resource: pack(t, tc.resource)}},
			}
			raw := encode(t, message)
			first, err := reader.Read(raw)
			if err != nil {
				t.Fatal(err)
			}
			if first.Type != tc.url || string(first.Nonce) != "1" || first.Size != len(raw) ||
				!slices.Equal(first.Resources, []wire.Held{{"r", "v"}}) ||
				!slices.Equal(first.Removed, message.RemovedResources) || !slices.Equal(first.Hosts, []string{"r", "gone.ns.svc"}) || !tc.is(first) {
				t.Errorf("read %+v", first)
			}
			message.Nonce = "2"
			second, err := reader.Read(encode(t, message))
			if err != nil {
				t.Fatal(err)
			}
			if second.Content != first.Content || string(second.Nonce) != "2" {
				t.Error("the same content with another nonce is another content")
			}
			// What the floor sends in place of it says the same.
			again := &discovery.DeltaDiscoveryResponse{}
			if err := proto.Unmarshal(append(slices.Clone(first.Body), wire.Nonce("2")...), again); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(message, again) {
				t.Errorf("want %v\ngot  %v", message, again)
			}
		})
	}
}

func TestGarbageIsAnError(t *testing.T) {
	for _, raw := range [][]byte{{0xff}, {0x12, 0x7f, 0x01}} {
		if _, err := wire.NewReader().Read(raw); err == nil {
			t.Errorf("%x was read", raw)
		}
	}
}
