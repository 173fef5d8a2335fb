package listener

import (
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func speaking(p configv1.Protocol, addresses ...string) func(*configv1.Service) {
	return func(s *configv1.Service) { s.Ports[0].Protocol, s.Addresses = p, addresses }
}

// A service that a listener does not distinguish from others does not rebuild it. The results are shared by all classes
// unless an object limits them.
func TestListenersRebuildOnlyForTheirServices(t *testing.T) {
	const tcp, tls, http = configv1.Protocol_PROTOCOL_TCP, configv1.Protocol_PROTOCOL_TLS, configv1.Protocol_PROTOCOL_HTTP
	before := []*configv1.Resource{
		meshtest.Service("default", "web.svc", 80, speaking(http, "10.0.0.1")),
		meshtest.Service("default", "db.svc", 3306, speaking(tcp, "10.0.0.2")),
		meshtest.Service("default", "www.example.com", 443, speaking(tls)),
	}
	const always = "both"
	for _, tc := range []struct {
		name, listener string
		added          *configv1.Resource
		// rebuilds says for which sidecars the listener is rebuilt: "eager", both or none.
		rebuilds string
	}{
		{"HTTP on a port that has it", "0.0.0.0_80", meshtest.Service("default", "a.svc", 80, speaking(http, "10.0.0.3")), ""},
		{"HTTP without an address", "0.0.0.0_80", meshtest.Service("default", "a.svc", 80, speaking(http)), ""},
		{"HTTP on another port", "0.0.0.0_80", meshtest.Service("default", "a.svc", 81, speaking(http, "10.0.0.3")), ""},
		{"TCP at an address", "0.0.0.0_80", meshtest.Service("default", "a.svc", 80, speaking(tcp, "10.0.0.3")), ""},
		{"TCP at another address", "10.0.0.2_3306", meshtest.Service("default", "a.svc", 3306, speaking(tcp, "10.0.0.3")), ""},
		{"TCP at the same address", "10.0.0.2_3306", meshtest.Service("default", "a.svc", 3306, speaking(tcp, "10.0.0.2")), always},
		{"TCP anywhere", "0.0.0.0_80", meshtest.Service("default", "a.svc", 80, speaking(tcp)), always},
		{"TLS told by SNI", "0.0.0.0_443", meshtest.Service("default", "a.example.com", 443, speaking(tls)), "eager"},
		{"first TLS told by SNI", "0.0.0.0_80", meshtest.Service("default", "a.example.com", 80, speaking(tls)), always},
		{"a service", "virtualOutbound", meshtest.Service("default", "a.svc", 80, speaking(tcp)), ""},
		{"HTTP routes", "0.0.0.0_80", meshtest.Config(mesh.KindVirtualService, "default", "vs", &networking.VirtualService{
			Hosts: []string{"web.svc"}, Http: []*networking.HTTPRoute{{}},
		}), ""},
	} {
		for _, onDemand := range []bool{false, true} {
			key := &class.Key{Type: class.Sidecar, Interception: class.Redirect, VirtualHosts: onDemand, OnDemand: onDemand}
			view := input.NewView(key, meshtest.State(t, before...))
			r := view.Reader()
			if _, err := (Translator{}).Build(r, tc.listener); err != nil {
				t.Fatal(err)
			}
			if r.Scope() != input.MeshScope {
				t.Errorf("%s: %s holds for %v", tc.name, tc.listener, r.Scope())
			}
			state, change := view.State().Apply(nil, []*configv1.Resource{tc.added}, nil)
			want := tc.rebuilds == always || tc.rebuilds == "eager" && !onDemand
			if got := r.Dependencies().Meets(view.Advance(state, change.Topics)); got != want {
				t.Errorf("%s, on demand %v: %s is built again: %v, want %v", tc.name, onDemand, tc.listener, got, want)
			}
		}
	}
}

func TestNoInspectionWhereTheServerSpeaksFirst(t *testing.T) {
	resources := []*configv1.Resource{
		meshtest.Service("default", "web.svc", 3306, speaking(configv1.Protocol_PROTOCOL_HTTP, "10.0.0.1")),
		meshtest.Service("default", "db.svc", 3306, speaking(configv1.Protocol_PROTOCOL_MYSQL, "10.0.0.2")),
		meshtest.Service("default", "alone.svc", 3307, speaking(configv1.Protocol_PROTOCOL_MYSQL, "10.0.0.2")),
		meshtest.Service("default", "anywhere.svc", 3308, speaking(configv1.Protocol_PROTOCOL_MYSQL)),
	}
	key := &class.Key{Type: class.Sidecar, Interception: class.Redirect, VirtualHosts: true, OnDemand: true}
	r := input.NewView(key, meshtest.State(t, resources...)).Reader()
	for _, tc := range []struct {
		name      string
		inspected bool
		hosts     []string
	}{
		{"virtualOutbound", false, nil},
		{"0.0.0.0_3306", true, []string{"web.svc"}},
		{"10.0.0.2_3306", false, []string{"db.svc"}},
	} {
		m, err := Translator{}.Build(r, tc.name)
		if err != nil || m == nil {
			t.Fatalf("%s: %v, %v", tc.name, m, err)
		}
		if l := m.(*listenerv3.Listener); (len(l.GetListenerFilters()) > 0) != tc.inspected {
			t.Errorf("%s: listener filters %v", tc.name, l.GetListenerFilters())
		}
		for _, host := range []string{"web.svc", "db.svc", "alone.svc", "anywhere.svc"} {
			found, err := Translator{}.HostNames(r, host)
			if err != nil || slices.Contains(found, tc.name) != slices.Contains(tc.hosts, host) {
				t.Errorf("%s: %s lists %q, %v", tc.name, host, found, err)
			}
		}
	}
	for _, host := range []string{"alone.svc", "anywhere.svc"} {
		if found, _ := (Translator{}).HostNames(r, host); len(found) > 0 {
			t.Errorf("%s has listeners %q", host, found)
		}
	}
}

// A policy that changes in what exists in HTTP alone does not rebuild listeners: the filters that it changes travel
// beside them.
func TestListenersRebuildOnlyForWhatPoliciesSayOfConnections(t *testing.T) {
	policy := func(action security.AuthorizationPolicy_Action, op *security.Operation, namespaces ...string) *configv1.Resource {
		return meshtest.Config(mesh.KindAuthorizationPolicy, "default", "p", &security.AuthorizationPolicy{
			Action: action, Rules: []*security.Rule{{
				From: []*security.Rule_From{{Source: &security.Source{Namespaces: namespaces}}},
				To:   []*security.Rule_To{{Operation: op}},
			}},
		})
	}
	const deny, allow = security.AuthorizationPolicy_DENY, security.AuthorizationPolicy_ALLOW
	path := func(p string) *security.Operation { return &security.Operation{Paths: []string{p}} }
	for _, tc := range []struct {
		name          string
		before, after *configv1.Resource
		want          bool
	}{
		{"another path to deny", policy(deny, path("/a"), "x"), policy(deny, path("/b"), "x"), false},
		{"another path to allow", policy(allow, path("/a"), "x"), policy(allow, path("/b"), "y"), false},
		{"another caller to deny", policy(deny, path("/a"), "x"), policy(deny, path("/a"), "y"), true},
		{"another port to allow", policy(allow, &security.Operation{Ports: []string{"80"}}), policy(allow, &security.Operation{Ports: []string{"81"}}), true},
		{"another action", policy(allow, path("/a"), "x"), policy(deny, path("/a"), "x"), true},
	} {
		view := input.NewView(&class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect, Filters: ^class.Filters(0)},
			meshtest.State(t, tc.before))
		r := view.Reader()
		if _, err := (Translator{}).Build(r, "virtualInbound"); err != nil {
			t.Fatal(err)
		}
		state, change := view.State().Apply(nil, []*configv1.Resource{tc.after}, nil)
		if got := r.Dependencies().Meets(view.Advance(state, change.Topics)); got != tc.want {
			t.Errorf("%s: virtualInbound is built again: %v, want %v", tc.name, got, tc.want)
		}
	}
}
