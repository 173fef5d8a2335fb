package input_test

import (
	"slices"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestDestinationsOfAdmittedVirtualServices: a client reaches a service that its Sidecar does not admit if an admitted
// VirtualService routes to it.
func TestDestinationsOfAdmittedVirtualServices(t *testing.T) {
	to := func(namespace, name string, gateways []string, host string, destinations ...string) *configv1.Resource {
		spec := &networking.VirtualService{Hosts: []string{host}, Gateways: gateways, Http: []*networking.HTTPRoute{{}}}
		for _, d := range destinations {
			spec.Http[0].Route = append(spec.Http[0].Route, &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: d}})
		}
		spec.Http[0].Mirror = &networking.Destination{Host: "copies"}
		return meshtest.Config(mesh.KindVirtualService, namespace, name, spec)
	}
	resources := []*configv1.Resource{
		meshtest.Service("client", "own", 80), meshtest.Service("server", "far", 80), meshtest.Service("server", "copies", 80),
		meshtest.Service("server", "other", 80),
		meshtest.Service("server", "hidden", 80, meshtest.Visible("x")), meshtest.Service("client", "twice", 80),
		meshtest.Service("server", "twice", 80, older),
	}
	mesh := []string{"mesh"}
	for name, tc := range map[string]struct {
		vs      *configv1.Resource
		sidecar *configv1.Resource
		want    []string
	}{
		"none": {nil, sidecar("client", "s", nil, "./*"), []string{"own@client", "twice@client"}},
		"admitted": {to("client", "vs", mesh, "own", "far", "hidden"), sidecar("client", "s", nil, "./*"),
			[]string{"copies@server", "far@server", "own@client", "twice@client"}},
		"not admitted": {to("server", "vs", mesh, "own", "far"), sidecar("client", "s", nil, "./*"),
			[]string{"own@client", "twice@client"}},
		"of a gateway": {to("client", "vs", []string{"client/gw"}, "own", "far"), sidecar("client", "s", nil, "./*"),
			[]string{"own@client", "twice@client"}},
		"admitted by itself": {to("client", "vs", mesh, "own", "twice"), sidecar("client", "s", nil, "./own", "server/twice"),
			[]string{"copies@server", "own@client", "twice@server"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(slices.Clone(resources), tc.sidecar)
			if tc.vs != nil {
				all = append(all, tc.vs)
			}
			r := client(t, all...)
			if got := hostnames(r.Services()); !slices.Equal(got, tc.want) {
				t.Errorf("services %q, want %q", got, tc.want)
			}
			var found []string
			for _, host := range []string{"copies", "far", "hidden", "other", "own", "twice"} {
				if svc := r.Service(host); svc != nil {
					found = append(found, hostnames([]*configv1.Service{svc})...)
				}
			}
			if !slices.Equal(found, tc.want) {
				t.Errorf("looked up %q, want %q", found, tc.want)
			}
			if !r.Speaks(r.EgressListeners()[0], 80, configv1.Protocol_PROTOCOL_HTTP) {
				t.Error("nothing speaks HTTP")
			}
		})
	}
}

// TestImportedServicesHavePorts: a port that only an imported service has gets its listener.
func TestImportedServicesHavePorts(t *testing.T) {
	far := meshtest.Service("server", "far", 81)
	vs := meshtest.Config(mesh.KindVirtualService, "client", "vs", &networking.VirtualService{
		Hosts: []string{"own"}, Gateways: []string{"mesh"},
		Tcp: []*networking.TCPRoute{{Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: "far"}}}}},
	})
	for want, r := range map[bool][]*configv1.Resource{true: {far, vs}, false: {far}} {
		reader := client(t, append(r, sidecar("client", "s", nil, "./*"))...)
		if got := reader.Speaks(reader.EgressListeners()[0], 81, configv1.Protocol_PROTOCOL_HTTP); got != want {
			t.Errorf("port 81: %v, want %v", got, want)
		}
	}
}

// TestPortsThatNothingSpeaksAt: of a port at which no service at all speaks a protocol, VirtualServices are not asked,
// so that no change of theirs costs anything. When a service comes that one of them imports, the answer changes.
func TestPortsThatNothingSpeaksAt(t *testing.T) {
	vs := meshtest.Config(mesh.KindVirtualService, "client", "vs", &networking.VirtualService{
		Hosts: []string{"own"}, Gateways: []string{"mesh"},
		Tcp: []*networking.TCPRoute{{Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: "far"}}}}},
	})
	settings := meshtest.Mesh(&meshv1alpha1.MeshConfig{RootNamespace: "root"})
	state := meshtest.State(t, settings, vs, sidecar("client", "s", nil, "./*"), meshtest.Service("client", "own", 80))
	view := input.NewView((&class.Key{Type: class.Sidecar, Namespace: "client"}).WithSidecar(state, nil), state)
	speaks := func() (answer, asks bool, r *input.Reader) {
		r = view.Reader()
		answer = r.Speaks(r.EgressListeners()[0], 81, configv1.Protocol_PROTOCOL_HTTP)
		for topic := range r.Dependencies() {
			for _, routes := range mesh.VirtualServicesTopics("client", "mesh") {
				asks = asks || view.DependsOn(topic, func(t mesh.Topic) bool { return t == routes })
			}
		}
		return answer, asks, r
	}
	answer, asks, r := speaks()
	if answer || asks {
		t.Errorf("port 81 of no service: %v, VirtualServices are asked: %v", answer, asks)
	}
	next, change := state.Apply(&configv1.Revision{Sequence: 2}, []*configv1.Resource{meshtest.Service("server", "far", 81)}, nil)
	if !r.Dependencies().Meets(view.Advance(next, change.Topics)) {
		t.Error("the answer is not told of the service that comes")
	}
	if answer, asks, _ := speaks(); !answer || !asks {
		t.Errorf("port 81 of an imported service: %v, VirtualServices are asked: %v", answer, asks)
	}
}
