package mesh_test

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestMeshGateways: the answer changes with the first Gateway that passes mesh TLS through and with the last, and only
// then its topic is touched.
func TestMeshGateways(t *testing.T) {
	gateway := func(name string, mode networking.ServerTLSSettings_TLSmode) *configv1.Resource {
		return meshtest.Config(mesh.KindGateway, "gateways", name, &networking.Gateway{Servers: []*networking.Server{
			{Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}}, {Tls: &networking.ServerTLSSettings{Mode: mode}},
		}})
	}
	const auto, simple = networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_SIMPLE
	state := meshtest.State(t)
	for _, step := range []struct {
		name          string
		upsert        *configv1.Resource
		remove        string
		want, touched bool
	}{
		{"another mode", gateway("a", simple), "", false, false},
		{"the first", gateway("b", auto), "", true, true},
		{"one more", gateway("c", auto), "", true, false},
		{"changed", gateway("a", auto), "", true, false},
		{"changed back", gateway("a", simple), "", true, false},
		{"one gone", nil, "b", true, false},
		{"the last gone", nil, "c", false, true},
	} {
		var upserts []*configv1.Resource
		var removed []*configv1.ResourceKey
		if step.upsert != nil {
			upserts = append(upserts, step.upsert)
		} else {
			removed = append(removed, &configv1.ResourceKey{Kind: mesh.KindGateway, Namespace: "gateways", Name: step.remove})
		}
		next, change := state.Apply(nil, upserts, removed)
		if next.MeshGateways() != step.want || change.Topics.Has(mesh.AutoPassthroughTopic()) != step.touched {
			t.Errorf("%s: got %v, touched %v", step.name, next.MeshGateways(), change.Topics.Has(mesh.AutoPassthroughTopic()))
		}
		state = next
	}
}
