package normalise

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

func TestTenancy(t *testing.T) {
	tenants := Tenancy{Enabled: true, Domain: "cluster.local"}
	route := func(gateways []string, hosts ...string) *networking.VirtualService {
		return &networking.VirtualService{Hosts: hosts, Gateways: gateways, ExportTo: []string{"*"}}
	}
	entry := func(name, protocol string) *networking.ServiceEntry {
		return &networking.ServiceEntry{Hosts: []string{"more.a.svc.cluster.local"}, Ports: []*networking.ServicePort{
			{Number: 443, Name: "https"}, {Number: 90, Name: name, Protocol: protocol}}}
	}
	for name, c := range map[string]struct {
		namespace string
		body      any
		confined  bool
	}{
		"routes of an own host":                    {"a", route(nil, "own", "own.a.svc.cluster.local"), false},
		"routes of all own hosts":                  {"a", route(nil, "*.a.svc.cluster.local"), false},
		"routes of another's host":                 {"a", route(nil, "server.b.svc.cluster.local"), true},
		"routes of everybody's hosts":              {"a", route(nil, "*.svc.cluster.local"), true},
		"routes of any host":                       {"a", route(nil, "*"), true},
		"routes of an own and another's":           {"a", route(nil, "own", "www.example.com"), true},
		"a namespace whose name ends like another": {"a", route(nil, "server.b-a.svc.cluster.local"), true},
		"routes of a gateway":                      {"a", route([]string{"edge/web"}, "www.example.com"), false},
		"routes of a gateway and the mesh":         {"a", route([]string{"edge/web", "mesh"}, "www.example.com"), true},
		"a match for the mesh": {"a", &networking.VirtualService{Hosts: []string{"www.example.com"}, Gateways: []string{"edge/web"},
			Http: []*networking.HTTPRoute{{Match: []*networking.HTTPMatchRequest{{Gateways: []string{"mesh"}}}}}}, true},
		"a delegate":               {"a", route(nil), false},
		"a rule of an own host":    {"a", &networking.DestinationRule{Host: "own"}, false},
		"a rule of another's host": {"a", &networking.DestinationRule{Host: "server.b.svc.cluster.local"}, true},
		"an entry":                 {"a", &networking.ServiceEntry{Hosts: []string{"www.example.com"}}, true},
		"an entry of an own host":  {"a", &networking.ServiceEntry{Hosts: []string{"more.a.svc.cluster.local"}}, false},
		"an entry with another's address": {"a",
			&networking.ServiceEntry{Hosts: []string{"more.a.svc.cluster.local"}, Addresses: []string{"10.0.0.1"}}, true},
		"an entry with a port of HTTP":        {"a", entry("a", "GRPC"), false},
		"an entry with a port named HTTP":     {"a", entry("http-a", ""), false},
		"an entry with a port of TLS":         {"a", entry("a", "TLS"), false},
		"an entry that takes a port by TCP":   {"a", entry("a", "TCP"), true},
		"an entry that takes a port by Redis": {"a", entry("a", "REDIS"), true},
		"an entry that takes a port unsaid":   {"a", entry("a", ""), true},
		"an entry of the root namespace":      {"istio-system", &networking.ServiceEntry{Hosts: []string{"www.example.com"}}, false},
		"routes of the root namespace":        {"istio-system", route(nil, "*"), false},
		"a Gateway is confined in other ways": {"a", &networking.Gateway{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object.Object{Key: object.Key{Group: kinds.GroupNetworking, Namespace: c.namespace, Name: "o"}, Body: c.body}
			settings := meshdefaults.MeshConfig()
			if why := tenants.Confined(o, settings.GetRootNamespace()); (why != "") != c.confined {
				t.Errorf("confined because %q, want %v", why, c.confined)
			}
			if why := (Tenancy{Domain: "cluster.local"}).Confined(o, settings.GetRootNamespace()); why != "" {
				t.Errorf("without tenants it is confined because %s", why)
			}
			want := []string{"*"}
			if c.confined {
				want = []string{c.namespace}
			}
			if got := ObjectExportedTo(o, settings, tenants); !slices.Equal(got, want) {
				t.Errorf("exported to %v, want %v", got, want)
			}
		})
	}
}
