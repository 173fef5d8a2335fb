package input_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
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
		meshtest.Service("client", "own", 80), meshtest.Service("server", "far", 80), meshtest.Service("server", "copies", 80), meshtest.Service("server", "other", 80),
		meshtest.Service("server", "hidden", 80, meshtest.Visible("x")), meshtest.Service("client", "twice", 80), meshtest.Service("server", "twice", 80, older),
	}
	mesh := []string{"mesh"}
	for name, tc := range map[string]struct {
		vs      *configv1.Resource
		sidecar *configv1.Resource
		want    []string
	}{
		"none":               {nil, sidecar("client", "s", nil, "./*"), []string{"own@client", "twice@client"}},
		"admitted":           {to("client", "vs", mesh, "own", "far", "hidden"), sidecar("client", "s", nil, "./*"), []string{"copies@server", "far@server", "own@client", "twice@client"}},
		"not admitted":       {to("server", "vs", mesh, "own", "far"), sidecar("client", "s", nil, "./*"), []string{"own@client", "twice@client"}},
		"of a gateway":       {to("client", "vs", []string{"client/gw"}, "own", "far"), sidecar("client", "s", nil, "./*"), []string{"own@client", "twice@client"}},
		"admitted by itself": {to("client", "vs", mesh, "own", "twice"), sidecar("client", "s", nil, "./own", "server/twice"), []string{"copies@server", "own@client", "twice@server"}},
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
