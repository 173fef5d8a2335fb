package input_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// client is a sidecar of namespace "client" with labels app=c.
func client(t *testing.T, resources ...*configv1.Resource) *input.Reader {
	t.Helper()
	return readerFor(t, &class.Key{Type: class.Sidecar, Namespace: "client", Labels: map[string]string{"app": "c"}}, resources...)
}

func readerFor(t *testing.T, key *class.Key, resources ...*configv1.Resource) *input.Reader {
	t.Helper()
	resources = append([]*configv1.Resource{meshtest.Mesh(&meshv1alpha1.MeshConfig{RootNamespace: "root"})}, resources...)
	state := meshtest.State(t, resources...)
	return input.NewView(key.WithSidecar(state, key.Labels), state).Reader()
}

func sidecar(namespace, name string, selector map[string]string, hosts ...string) *configv1.Resource {
	s := &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: hosts}}}
	if selector != nil {
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: selector}
	}
	return meshtest.Config(mesh.KindSidecar, namespace, name, s)
}

func hostnames(services []*configv1.Service) []string {
	var names []string
	for _, s := range services {
		names = append(names, s.GetHostname()+"@"+s.GetNamespace())
	}
	return names
}

func older(s *configv1.Service) { s.CreationTime = timestamppb.New(meshtest.Epoch.Add(-time.Hour)) }

func TestServices(t *testing.T) {
	services := []*configv1.Resource{
		meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80),
		meshtest.Service("server", "for-client", 80, meshtest.Visible("client", "x")),
		meshtest.Service("server", "for-others", 80, meshtest.Visible("x")),
		meshtest.Service("a", "twice", 80), meshtest.Service("b", "twice", 80, older), meshtest.Service("b", "mine", 80, older),
		meshtest.Service("client", "mine", 80),
		meshtest.Service("server", "*.wild.example.com", 80),
	}
	all := []string{"*.wild.example.com@server", "for-client@server", "mine@client", "own@client", "public@server", "twice@b"}
	for name, tc := range map[string]struct {
		sidecar *configv1.Resource
		want    []string
	}{
		"no Sidecar":            {sidecar("client", "s", map[string]string{"app": "other"}, "~/*"), all},
		"everything":            {sidecar("client", "s", nil, "*/*"), all},
		"own namespace":         {sidecar("client", "s", nil, "./*"), []string{"mine@client", "own@client"}},
		"a namespace":           {sidecar("client", "s", nil, "a/*"), []string{"twice@a"}},
		"a host of a namespace": {sidecar("client", "s", nil, "server/public", "./own"), []string{"own@client", "public@server"}},
		"a host of any":         {sidecar("client", "s", nil, "*/for-client"), []string{"for-client@server"}},
		"a host not exported":   {sidecar("client", "s", nil, "*/for-others"), nil},
		"nothing":               {sidecar("client", "s", nil, "~/*"), nil},
		"a wildcard":            {sidecar("client", "s", nil, "*/*.example.com"), []string{"*.wild.example.com@server"}},
		"of the root namespace": {sidecar("root", "s", nil, "./*"), []string{"mine@client", "own@client"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := client(t, append(services, tc.sidecar)...)
			if got := hostnames(r.Services()); !slices.Equal(got, tc.want) {
				t.Errorf("services %q, want %q", got, tc.want)
			}
			for _, s := range services {
				host := s.GetService().GetHostname()
				got := hostnames(slices.DeleteFunc([]*configv1.Service{r.Service(host)}, func(s *configv1.Service) bool { return s == nil }))
				want := slices.DeleteFunc(slices.Clone(tc.want), func(w string) bool { return !strings.HasPrefix(w, host+"@") })
				if !slices.Equal(got, want) {
					t.Errorf("service %s is %q, want %q: the list and the look-up disagree", host, got, want)
				}
			}
		})
	}
}

func TestEndpointsAreThoseOfTheVisibleService(t *testing.T) {
	r := client(t, meshtest.Service("a", "twice", 80), meshtest.Service("b", "twice", 80, older),
		meshtest.Service("c", "hidden", 80, meshtest.Visible("c")),
		meshtest.Endpoints("a", "twice", 80, "10.0.0.1"), meshtest.Endpoints("b", "twice", 80, "10.0.0.2"),
		meshtest.Endpoints("c", "hidden", 80, "10.0.0.3"))
	sets := r.Endpoints(r.Service("twice"), 80)
	if len(sets) != 1 || sets[0].GetEndpoints()[0].GetAddress() != "10.0.0.2" {
		t.Errorf("endpoints %v", sets)
	}
	if got := r.Endpoints(r.Service("hidden"), 80); got != nil {
		t.Errorf("endpoints of a service that is not exported: %v", got)
	}
}

// TestServicesByVisibility: of the services of one hostname and namespace a client sees the one that is visible to its
// namespace in particular, or else the one that is visible to all.
func TestServicesByVisibility(t *testing.T) {
	const host = "www.example.com"
	more := func(s *configv1.Service) {
		s.Ports = append(s.Ports, &configv1.ServicePort{Name: "more", Number: 81, Protocol: configv1.Protocol_PROTOCOL_TCP, TargetPort: 81})
	}
	vip := func(s *configv1.Service) { s.Addresses = []string{"10.96.0.1"} }
	resources := []*configv1.Resource{
		meshtest.Service("server", host, 80), meshtest.Endpoints("server", host, 80, "10.0.0.1"), meshtest.Service("younger", host, 80),
		meshtest.VisibleOnlyIn(meshtest.Service("server", host, 80, more, vip), "client", "near"),
		meshtest.VisibleOnlyIn(meshtest.Endpoints("server", host, 80, "10.0.0.2"), "client"),
		meshtest.VisibleOnlyIn(meshtest.Endpoints("server", host, 81, "10.0.0.3"), "client"),
		meshtest.VisibleOnlyIn(meshtest.Service("server", host, 82), "~"),
	}
	for namespace, want := range map[string]struct {
		ports           int
		endpoint        string
		unplaced, speak bool
	}{
		"client": {2, "10.0.0.2", false, true}, "near": {2, "10.0.0.2", false, true}, "elsewhere": {1, "10.0.0.1", true, false},
		"server": {1, "10.0.0.1", true, false},
	} {
		r := readerFor(t, &class.Key{Type: class.Sidecar, Namespace: namespace}, resources...)
		svc := r.Service(host)
		if all := r.Services(); len(all) != 1 || all[0] != svc || len(svc.GetPorts()) != want.ports || svc.GetNamespace() != "server" {
			t.Errorf("%s: %v is %v", namespace, all, svc)
		}
		if sets := r.Endpoints(r.Service(host), 80); len(sets) != 1 || sets[0].GetEndpoints()[0].GetAddress() != want.endpoint {
			t.Errorf("%s: endpoints %v", namespace, sets)
		}
		if got := len(r.Endpoints(r.Service(host), 81)) == 1; got != want.speak {
			t.Errorf("%s: endpoints of a private port: %v", namespace, got)
		}
		if got := slices.Equal(r.ServicesAt(80, ""), []*configv1.Service{svc}); got != want.unplaced {
			t.Errorf("%s: %v", namespace, r.ServicesAt(80, ""))
		}
		if got := r.Speaks(nil, 81, configv1.Protocol_PROTOCOL_TCP); got != want.speak {
			t.Errorf("%s: port 81 is spoken: %v", namespace, got)
		}
	}
	// What leads to a workload does so whoever sees it.
	r := readerFor(t, &class.Key{Type: class.Sidecar, Namespace: "server"}, resources...)
	for port, audience := range map[uint32]string{80: "", 81: "client", 82: "~"} {
		if svc := r.TargetService(class.Target{Hostname: host, Namespace: "server", Port: port}); svc.GetAudience() != audience {
			t.Errorf("port %d leads to the service of %q", port, svc.GetAudience())
		}
	}
}

func TestSidecarPrecedence(t *testing.T) {
	selects, byDefault, root := sidecar("client", "selects", map[string]string{"app": "c"}, "./*"), sidecar("client", "default", nil, "./*"),
		sidecar("root", "root", nil, "./*")
	for name, tc := range map[string]struct {
		resources []*configv1.Resource
		want      string
	}{
		"selecting":         {[]*configv1.Resource{root, byDefault, selects}, "selects"},
		"namespace":         {[]*configv1.Resource{root, byDefault, sidecar("client", "other", map[string]string{"app": "o"}, "./*")}, "default"},
		"root":              {[]*configv1.Resource{root, sidecar("other", "other", nil, "./*")}, "root"},
		"root with labels":  {[]*configv1.Resource{sidecar("root", "root", map[string]string{"app": "c"}, "./*")}, ""},
		"none":              {nil, ""},
		"oldest of several": {[]*configv1.Resource{sidecar("client", "b", nil), sidecar("client", "a", nil)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if s := client(t, tc.resources...).Sidecar(); s != nil {
				got = s.Key.Name
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	if s := readerFor(t, &class.Key{Type: class.Router, Namespace: "client"}, byDefault).Sidecar(); s != nil {
		t.Errorf("a router has the Sidecar %s", s.Key)
	}
}

func rule(namespace, name, host string, change ...func(*networking.DestinationRule)) *configv1.Resource {
	r := &networking.DestinationRule{Host: host, Subsets: []*networking.Subset{{Name: name}}}
	for _, f := range change {
		f(r)
	}
	return meshtest.Config(mesh.KindDestinationRule, namespace, name, r)
}

func selecting(app string) func(*networking.DestinationRule) {
	return func(r *networking.DestinationRule) {
		r.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
	}
}

func TestDestinationRule(t *testing.T) {
	const host = "s.server.svc"
	service := meshtest.Service("server", host, 80)
	for name, tc := range map[string]struct {
		rules []*configv1.Resource
		want  []string // subsets, which are named like the rules
	}{
		"none": {nil, nil},
		"client before service": {[]*configv1.Resource{rule("client", "c", host), rule("server", "s", host), rule("root", "r", host)},
			[]string{"c"}},
		"service before root":   {[]*configv1.Resource{rule("server", "s", host), rule("root", "r", host)}, []string{"s"}},
		"root":                  {[]*configv1.Resource{rule("root", "r", host), rule("other", "o", host)}, []string{"r"}},
		"exact before wildcard": {[]*configv1.Resource{rule("server", "w", "*.server.svc"), rule("server", "e", host)}, []string{"e"}},
		"long wildcard first": {[]*configv1.Resource{rule("server", "w", "*.svc"), rule("server", "l", "*.server.svc"),
			rule("server", "all", "*")}, []string{"l"}},
		"client's wildcard first": {[]*configv1.Resource{rule("client", "w", "*"), rule("server", "e", host)}, []string{"w"}},
		"merged":                  {[]*configv1.Resource{rule("server", "a", host), rule("server", "b", host)}, []string{"a", "b"}},
		"selected before general": {[]*configv1.Resource{rule("client", "a", host), rule("client", "b", host, selecting("c"))}, []string{"b"}},
		"selecting others":        {[]*configv1.Resource{rule("client", "b", host, selecting("o")), rule("server", "s", host)}, []string{"s"}},
		"selecting from afar":     {[]*configv1.Resource{rule("server", "b", host, selecting("c"))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if r := client(t, append(tc.rules, service)...).DestinationRule(host); r != nil {
				for _, s := range r.Spec.GetSubsets() {
					got = append(got, s.GetName())
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("subsets %q, want %q", got, tc.want)
			}
		})
	}
	for name, kind := range map[string]class.NodeType{"selected gateway": class.Router, "selected proxyless server": class.Proxyless} {
		t.Run(name, func(t *testing.T) {
			key := &class.Key{Type: kind, Namespace: "client", Labels: map[string]string{"app": "c"}}
			got := readerFor(t, key, rule("client", "a", host), rule("client", "b", host, selecting("c")), service).DestinationRule(host)
			if got == nil || got.Key.Name != "b" {
				t.Errorf("got %v, want b", got)
			}
		})
	}
	t.Run("what it accepts", func(t *testing.T) {
		got := client(t, rule("client", "a", host, selecting("c")), rule("client", "b", host), service).InboundDestinationRule(host)
		if got == nil || got.Key.Name != "b" {
			t.Errorf("got %v, want b: a workload selector is about what workloads call", got)
		}
	})
	t.Run("not exported", func(t *testing.T) {
		r := meshtest.Config(mesh.KindDestinationRule, "server", "r", &networking.DestinationRule{Host: host}, meshtest.ExportedTo("server"))
		if got := client(t, r, service).DestinationRule(host); got != nil {
			t.Errorf("got %s", got.Key)
		}
	})
}

func TestInboundMTLS(t *testing.T) {
	pa := func(namespace, name, mode string, selector map[string]string, ports map[uint32]string) *configv1.Resource {
		return meshtest.PeerAuthentication(namespace, name, mode, func(p *security.PeerAuthentication) {
			if selector != nil {
				p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
			}
			for port, m := range ports {
				if p.PortLevelMtls == nil {
					p.PortLevelMtls = map[uint32]*security.PeerAuthentication_MutualTLS{}
				}
				p.PortLevelMtls[port] = &security.PeerAuthentication_MutualTLS{
					Mode: security.PeerAuthentication_MutualTLS_Mode(security.PeerAuthentication_MutualTLS_Mode_value[m]),
				}
			}
		})
	}
	mine := map[string]string{"app": "c"}
	for name, tc := range map[string]struct {
		policies []*configv1.Resource
		want     input.MTLSMode
	}{
		"none": {nil, input.Permissive},
		"root": {[]*configv1.Resource{pa("root", "r", "STRICT", nil, nil)}, input.Strict},
		"namespace over root": {[]*configv1.Resource{pa("root", "r", "STRICT", nil, nil), pa("client", "n", "DISABLE", nil, nil)},
			input.Disable},
		"workload over namespace": {[]*configv1.Resource{pa("client", "n", "STRICT", nil, nil), pa("client", "w", "PERMISSIVE", mine, nil)},
			input.Permissive},
		"unset inherits": {[]*configv1.Resource{pa("root", "r", "STRICT", nil, nil), pa("client", "n", "UNSET", nil, nil),
			pa("client", "w", "UNSET", mine, nil)}, input.Strict},
		"port over workload":  {[]*configv1.Resource{pa("client", "w", "STRICT", mine, map[uint32]string{8080: "DISABLE"})}, input.Disable},
		"another port":        {[]*configv1.Resource{pa("client", "w", "STRICT", mine, map[uint32]string{9090: "DISABLE"})}, input.Strict},
		"unset port inherits": {[]*configv1.Resource{pa("client", "w", "STRICT", mine, map[uint32]string{8080: "UNSET"})}, input.Strict},
		"selecting others":    {[]*configv1.Resource{pa("client", "w", "STRICT", map[string]string{"app": "o"}, nil)}, input.Permissive},
		"selecting in root":   {[]*configv1.Resource{pa("root", "w", "STRICT", mine, nil)}, input.Permissive},
		"oldest of a rank": {[]*configv1.Resource{pa("client", "b", "STRICT", nil, nil), pa("client", "a", "DISABLE", nil, nil)},
			input.Disable},
		"of another namespace": {[]*configv1.Resource{pa("other", "n", "STRICT", nil, nil)}, input.Permissive},
	} {
		t.Run(name, func(t *testing.T) {
			if got := client(t, tc.policies...).InboundMTLS(8080); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func virtualService(namespace, name string, age time.Duration, gateways []string, hosts ...string) *configv1.Resource {
	return meshtest.Config(mesh.KindVirtualService, namespace, name, &networking.VirtualService{Hosts: hosts, Gateways: gateways},
		meshtest.Aged(age))
}

func names(found []*mesh.VirtualService) []string {
	var names []string
	for _, v := range found {
		names = append(names, v.Key.Namespace+"/"+v.Key.Name)
	}
	return names
}

func TestVirtualServices(t *testing.T) {
	resources := []*configv1.Resource{
		virtualService("b", "young", time.Hour, nil, "x.example.com"),
		virtualService("a", "old", -time.Hour, []string{"mesh", "a/gw"}, "*.example.com"),
		virtualService("a", "edge", 0, []string{"gw"}, "x.example.com"),
		meshtest.Config(mesh.KindVirtualService, "b", "hidden", &networking.VirtualService{Hosts: []string{"x.example.com"}},
			meshtest.ExportedTo("b")),
	}
	r := client(t, resources...)
	for name, tc := range map[string]struct{ got, want []string }{
		"mesh, oldest first":            {names(r.VirtualServices("mesh")), []string{"a/old", "b/young"}},
		"gateway":                       {names(r.VirtualServices("a/gw")), []string{"a/old", "a/edge"}},
		"host, most specific":           {names(r.VirtualServicesOf("mesh", "x.example.com")), []string{"b/young", "a/old"}},
		"host under the wildcard":       {names(r.VirtualServicesOf("mesh", "y.example.com")), []string{"a/old"}},
		"host without a VirtualService": {names(r.VirtualServicesOf("mesh", "example.org")), nil},
		"host of a gateway":             {names(r.VirtualServicesOf("a/gw", "x.example.com")), []string{"a/edge", "a/old"}},
		"Sidecar admits by a host": {
			names(client(t, append(resources, sidecar("client", "s", nil, "b/x.example.com"))...).VirtualServices("mesh")), []string{"b/young"}},
		"Sidecar admits a part of": {
			names(client(t, append(resources, sidecar("client", "s", nil, "a/z.example.com"))...).VirtualServices("mesh")), []string{"a/old"}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
}

func TestGateways(t *testing.T) {
	gw := func(namespace, name string, selector map[string]string) *configv1.Resource {
		return meshtest.Config(mesh.KindGateway, namespace, name, &networking.Gateway{Selector: selector})
	}
	router := &class.Key{Type: class.Router, Namespace: "edge", Labels: map[string]string{"istio": "ingressgateway", "app": "gw"}}
	resources := []*configv1.Resource{
		gw("a", "by-one", map[string]string{"istio": "ingressgateway"}),
		gw("b", "by-two", map[string]string{"app": "gw", "istio": "ingressgateway"}),
		gw("a", "other", map[string]string{"istio": "egressgateway"}), gw("a", "half", map[string]string{"app": "gw", "istio": "egressgateway"}),
		gw("c", "all", nil),
	}
	var got []string
	for _, g := range readerFor(t, router, resources...).Gateways() {
		got = append(got, g.Key.Name)
	}
	if want := []string{"by-one", "by-two", "all"}; !slices.Equal(got, want) {
		t.Errorf("gateways %q, want %q", got, want)
	}
	if got := client(t, resources...).Gateways(); got != nil {
		t.Errorf("a sidecar has gateways %v", got)
	}
}

func TestEgressServices(t *testing.T) {
	r := client(t, meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80), sidecar("client", "s", nil, "./*"))
	for name, tc := range map[string]struct {
		hosts, want []string
	}{
		"one":  {[]string{"server/public"}, []string{"public@server"}},
		"own":  {[]string{"./*"}, []string{"own@client"}},
		"all":  {[]string{"*/*"}, []string{"own@client", "public@server"}},
		"none": {[]string{"~/*"}, nil},
	} {
		if got := hostnames(r.EgressServices(&networking.IstioEgressListener{Hosts: tc.hosts})); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestRequestAuthenticationsOfTheNamespaceComeFirst: of two rules of one issuer, the first that takes a token says what
// becomes of it.
func TestRequestAuthenticationsOfTheNamespaceComeFirst(t *testing.T) {
	of := func(namespace, name string, change ...func(*configv1.IstioConfig)) *configv1.Resource {
		return meshtest.Config(mesh.KindRequestAuthentication, namespace, name, &security.RequestAuthentication{}, change...)
	}
	r := client(t, of("root", "a"), of("client", "b", meshtest.Aged(2*time.Hour)), of("client", "c", meshtest.Aged(time.Hour)),
		of("other", "d"))
	var got []string
	for _, ra := range r.RequestAuthentications() {
		got = append(got, ra.Key.Name)
	}
	if want := []string{"c", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("objects %q, want %q", got, want)
	}
}
