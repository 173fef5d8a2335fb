package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

// collidingHosts are hostnames that are short names, addresses or Pods of others, or differ from them only in case or a
// dot.
var collidingHosts = []string{
	"a.default.svc.cluster.local", "b.default.svc.cluster.local", "a.other.svc.cluster.local", "A.default.svc.cluster.local",
	"a", "a.default", "a.default.svc", "*.a.default.svc.cluster.local", "*.a.default", "*.a", "*.default.svc.cluster.local", "*.default",
	"www.example.com", "WWW.example.com", "www.Example.com", "www.example.com.", "*.example.com", "x.www.example.com", "*.www.example.com",
	"10.0.0.1", "fd00::1", "FD00::1", "[fd00::1]", "*",
}

var collidingNamespaces = []string{"default", "other", "tenant"}

func drawTime(t *rapid.T) *timestamppb.Timestamp {
	return timestamppb.New(meshtest.Epoch.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Hour))
}

func drawExport(t *rapid.T) []string {
	return rapid.SampledFrom([][]string{{"*"}, {"*"}, {"*"}, {"default"}, {"other", "tenant"}, {"tenant"}, {"~"}}).Draw(t, "exported to")
}

func drawServices(t *rapid.T) []*configv1.Resource {
	var out []*configv1.Resource
	seen := map[string]bool{}
	protocols := []configv1.Protocol{
		configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_UNSPECIFIED, configv1.Protocol_PROTOCOL_TCP,
	}
	for range rapid.IntRange(0, 8).Draw(t, "services") {
		hostname := rapid.SampledFrom(collidingHosts).Draw(t, "service")
		namespace := rapid.SampledFrom(collidingNamespaces).Draw(t, "namespace")
		if seen[namespace+"/"+hostname] {
			continue
		}
		seen[namespace+"/"+hostname] = true
		out = append(out, meshtest.Service(namespace, hostname, 80, func(s *configv1.Service) {
			s.Ports = nil
			for _, number := range rapid.SampledFrom([][]uint32{{80}, {8080}, {80, 8080}, {80, 80}, {9090}}).Draw(t, "ports") {
				s.Ports = append(s.Ports, &configv1.ServicePort{Number: number, Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol")})
			}
			s.ExportedTo, s.CreationTime = drawExport(t), drawTime(t)
			s.Headless = rapid.Bool().Draw(t, "headless")
			s.Addresses = rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "fd00::1", "FD00::2", "10.1.0.0/16", "0.0.0.0"}), 0,
				2).Draw(t, "addresses")
		}), meshtest.Endpoints(namespace, hostname, 80, "10.9.0.1"))
	}
	return out
}

func drawVirtualServices(t *rapid.T) []*configv1.Resource {
	var out []*configv1.Resource
	for i := range rapid.IntRange(0, 5).Draw(t, "virtual services") {
		name := fmt.Sprintf("vs-%d", i)
		spec := &networking.VirtualService{
			Hosts:    rapid.SliceOfNDistinct(rapid.SampledFrom(collidingHosts), 1, 2, rapid.ID[string]).Draw(t, "hosts"),
			Gateways: []string{"mesh"},
		}
		if rapid.IntRange(0, 5).Draw(t, "tcp") == 0 {
			spec.Tcp = []*networking.TCPRoute{{Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: "a"}}}}}
		} else {
			spec.Http = []*networking.HTTPRoute{{Name: name, DirectResponse: &networking.HTTPDirectResponse{Status: 200}}}
			match := &networking.HTTPMatchRequest{}
			switch rapid.IntRange(0, 5).Draw(t, "match") {
			case 0:
				match.Port = 8080
			case 1:
				match.SourceNamespace = "default"
			case 2:
				match.SourceLabels = map[string]string{"app": "client"}
			case 3:
				match.Gateways = []string{"gw"}
			default:
				match = nil
			}
			if match != nil {
				spec.Http[0].Match = []*networking.HTTPMatchRequest{match}
			}
		}
		out = append(out, meshtest.Config(mesh.KindVirtualService, rapid.SampledFrom(collidingNamespaces).Draw(t, "namespace"), name, spec,
			func(c *configv1.IstioConfig) { c.ExportedTo, c.CreationTime = drawExport(t), drawTime(t) }))
	}
	return out
}

func drawSidecar(t *rapid.T) []*configv1.Resource {
	hosts := func() []string {
		return rapid.SliceOfN(rapid.SampledFrom([]string{"*/*", "default/*", "./*", "other/*.svc.cluster.local", "*/www.example.com", "~/*"}), 1,
			2).Draw(t, "egress")
	}
	spec := &networking.Sidecar{}
	switch rapid.IntRange(0, 3).Draw(t, "sidecar") {
	case 0:
		spec.Egress = []*networking.IstioEgressListener{{Hosts: hosts()}}
	case 1:
		spec.Egress = []*networking.IstioEgressListener{
			{Hosts: hosts(), Port: &networking.SidecarPort{Number: 8080, Protocol: "HTTP", Name: "http"}}, {Hosts: hosts()},
		}
	default:
		return nil
	}
	return []*configv1.Resource{meshtest.Config(mesh.KindSidecar, "default", "default", spec)}
}

func drawState(t *rapid.T) *mesh.Snapshot {
	state, err := mesh.FromResources(slices.Concat(drawServices(t), drawVirtualServices(t), drawSidecar(t)))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func drawClass(t *rapid.T, state *mesh.Snapshot) *class.Key {
	key := &class.Key{Type: class.Sidecar, Interception: class.Redirect,
		Namespace: rapid.SampledFrom([]string{"default", "other"}).Draw(t, "client")}
	key.DNSDomain = key.Namespace + ".svc.cluster.local"
	if rapid.Bool().Draw(t, "labelled") {
		key.Labels = map[string]string{"app": "client"}
	}
	return key.WithSidecar(state, key.Labels)
}

func newReader(key *class.Key, state *mesh.Snapshot) *input.Reader {
	return input.NewView(key, state).Reader()
}

// build builds a resource that must be valid.
func build(t *rapid.T, translator plan.Translator, r *input.Reader, name string) proto.Message {
	t.Helper()
	m, err := translator.Build(r, name)
	if err != nil {
		t.Fatalf("%q: %v", name, err)
	}
	if m != nil {
		if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	return m
}

// virtualHostsByDomain is what a proxy makes of virtual hosts.
type virtualHostsByDomain map[string]*routev3.VirtualHost

func (byDomain virtualHostsByDomain) add(t *rapid.T, hosts ...*routev3.VirtualHost) {
	t.Helper()
	for _, host := range hosts {
		if len(host.GetDomains()) == 0 || len(host.GetRoutes()) == 0 {
			t.Fatalf("%s has domains %q and %d routes", host.GetName(), host.GetDomains(), len(host.GetRoutes()))
		}
		for _, domain := range host.GetDomains() {
			domain = strings.ToLower(domain)
			if held, ok := byDomain[domain]; ok {
				t.Fatalf("domain %q is claimed by %s and by %s", domain, held.GetName(), host.GetName())
			}
			byDomain[domain] = host
		}
	}
}

// find matches a request's host as the proxy does.
func (byDomain virtualHostsByDomain) find(host string) *routev3.VirtualHost {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	if found, ok := byDomain[host]; ok {
		return found
	}
	for i := 1; i < len(host); i++ {
		if found, ok := byDomain["*"+host[i:]]; ok {
			return found
		}
	}
	return byDomain["*"]
}

func sameRoutes(a, b *routev3.VirtualHost) bool {
	return slices.EqualFunc(a.GetRoutes(), b.GetRoutes(), func(a, b *routev3.Route) bool { return proto.Equal(a, b) })
}

// A request's host has the same routes whether the class gets a whole route configuration, a list of virtual hosts by
// VHDS, or virtual hosts on demand.
func TestWholeListedAndOnDemandFormsHaveTheSameRoutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := drawState(t)
		whole := drawClass(t, state)
		hostwise, demanding := *whole, *whole
		hostwise.VirtualHosts, demanding.VirtualHosts, demanding.OnDemand = true, true, true

		listed, err := plan.List(route.VirtualHosts{}, &hostwise, state)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []*class.Key{whole, &demanding} {
			if names, err := plan.List(route.VirtualHosts{}, key, state); err != nil || len(names) > 0 {
				t.Fatalf("listed %q, %v for a class that is given none", names, err)
			}
		}
		for _, name := range []string{"80", "8080"} {
			m := build(t, route.Translator{}, newReader(whole, state), name)
			rc, _ := m.(*routev3.RouteConfiguration)
			inline := virtualHostsByDomain{}
			inline.add(t, rc.GetVirtualHosts()...)

			m = build(t, route.Translator{}, newReader(&hostwise, state), name)
			rc, _ = m.(*routev3.RouteConfiguration)
			byDomain := virtualHostsByDomain{}
			byDomain.add(t, rc.GetVirtualHosts()...)
			for _, host := range listed {
				if strings.HasPrefix(host, name+"/") {
					if rc.GetVhds() == nil {
						t.Fatalf("%q is listed, but %q takes no virtual hosts", host, name)
					}
					built, _ := build(t, route.VirtualHosts{}, newReader(&hostwise, state), host).(*routev3.VirtualHost)
					if built.GetName() != host {
						t.Fatalf("%q is called %q", host, built.GetName())
					}
					byDomain.add(t, built)
				}
			}
			compareTables(t, name, inline, byDomain)
			if rc.GetVhds() != nil {
				compareOnDemand(t, newReader(&demanding, state), name, inline)
			}
		}
	})
}

func compareTables(t *rapid.T, name string, inline, byDomain virtualHostsByDomain) {
	t.Helper()
	for domain, host := range inline {
		if other, ok := byDomain[domain]; !ok || !sameRoutes(host, other) {
			t.Fatalf("%s: domain %q is %s's inline, and %s's host by host", name, domain, host.GetName(), other.GetName())
		}
	}
	for domain, host := range byDomain {
		if _, ok := inline[domain]; !ok {
			t.Fatalf("%s: domain %q is %s's host by host, and nobody's inline", name, domain, host.GetName())
		}
	}
}

func compareOnDemand(t *rapid.T, r *input.Reader, name string, inline virtualHostsByDomain) {
	t.Helper()
	m := build(t, route.Translator{}, r, name)
	if rc := m.(*routev3.RouteConfiguration); rc.GetVhds() == nil || len(rc.GetVirtualHosts()) > 0 || rc.GetIgnorePortInHostMatching() {
		t.Fatalf("the route configuration on demand is %v", rc)
	}
	asked := []string{"nobody", "nobody.example.org", "x.www.example.com", "y.x.example.com", "[fd00::1]", "10.0.0.2", "[fd00::2]", "a.other",
		"a.tenant.svc"}
	for domain := range inline {
		asked = append(asked, strings.Replace(domain, "*", "pod-0", 1))
	}
	for _, host := range asked {
		for _, port := range []string{"", ":80", ":" + name, ":9"} {
			built, _ := build(t, route.VirtualHosts{}, r, name+"/"+host+port).(*routev3.VirtualHost)
			if built.GetName() != name+"/"+host+port || !slices.Equal(built.GetDomains(), []string{host + port}) {
				t.Fatalf("%q is answered with %q for %q", host+port, built.GetName(), built.GetDomains())
			}
			for _, found := range built.GetRoutes() {
				// Only in on-demand form a route lifts the limit on requests that wait for a virtual host.
				if action := found.GetRoute(); action != nil {
					if action.GetIdleTimeout() == nil {
						t.Fatalf("%q may not be idle", host+port)
					}
					action.IdleTimeout = nil
				}
			}
			if want := inline.find(host + port); !sameRoutes(want, built) {
				t.Fatalf("%s: %q has on demand %v, and inline %v", name, host+port, built.GetRoutes(), want.GetRoutes())
			}
		}
	}
}

// A result that was built for the mesh or the namespace is the one that the class would get, unless the class itself is
// read.
func TestResultsOfWiderScopesHoldForTheClass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := drawState(t)
		key := drawClass(t, state)
		key.VirtualHosts, key.OnDemand = true, rapid.Bool().Draw(t, "on demand")
		tiers := []*class.Key{key.OfMesh(), key.OfNamespace()}
		// holds reports whether a result holds for the class.
		holds := func(tier int, r *input.Reader) bool {
			if tier == 0 {
				return r.Scope() == input.MeshScope &&
					!slices.ContainsFunc(r.Topics(), func(topic mesh.Topic) bool { return state.IsPrivate(key.Namespace, topic) })
			}
			return r.Scope() <= input.NamespaceScope
		}
		var translator route.VirtualHosts
		names, err := plan.List(translator, key, state)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range collidingHosts {
			names = append(names, "80/"+host, "8080/"+host+":1", "80/pod."+host)
			own, err := translator.HostNames(newReader(key, state), host)
			if err != nil {
				t.Fatal(err)
			}
			for i, tier := range tiers {
				if tier == nil {
					continue
				}
				r := newReader(tier, state)
				if shared, err := translator.HostNames(r, host); err != nil || holds(i, r) && !slices.Equal(shared, own) {
					t.Fatalf("%q has %q, %v for tier %d, and %q for the class", host, shared, err, i, own)
				}
			}
		}
		for _, name := range names {
			own := build(t, translator, newReader(key, state), name)
			for i, tier := range tiers {
				if tier == nil {
					continue
				}
				r := newReader(tier, state)
				if shared := build(t, translator, r, name); holds(i, r) && !proto.Equal(shared, own) {
					t.Fatalf("%q is %v for tier %d, and %v for the class", name, shared, i, own)
				}
			}
		}
	})
}

// Virtual hosts of VHDS depend on no list of all services or all VirtualServices.
func TestVirtualHostsReadNoListOfServices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := drawState(t)
		key := drawClass(t, state)
		key.VirtualHosts, key.OnDemand = true, rapid.Bool().Draw(t, "on demand")
		r := newReader(key, state)
		for _, host := range collidingHosts {
			if _, err := (route.VirtualHosts{}).HostNames(r, host); err != nil {
				t.Fatal(err)
			}
			build(t, route.VirtualHosts{}, r, "80/"+host+":80")
		}
		if rc, _ := build(t, route.Translator{}, r, "80").(*routev3.RouteConfiguration); rc.GetVhds() == nil {
			return
		}
		for _, topic := range r.Topics() {
			if topic.Subject == mesh.SubjectServices || topic.Subject == mesh.SubjectGatewayRoutes {
				t.Fatalf("reads %s", topic)
			}
		}
	})
}

// A VirtualService that Envoy would reject is an error that names it, and leaves other hosts alone.
func TestInvalidVirtualServiceBreaksOnlyItsHost(t *testing.T) {
	bad := &networking.VirtualService{Hosts: []string{"a.default.svc.cluster.local"}, Gateways: []string{"mesh"},
		Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{
				{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: `\p{Letter}`}}}},
			DirectResponse: &networking.HTTPDirectResponse{Status: 200},
		}}}
	state := meshtest.State(t,
		meshtest.Service("default", "a.default.svc.cluster.local", 80), meshtest.Service("default", "b.default.svc.cluster.local", 80),
		meshtest.Config(mesh.KindVirtualService, "default", "bad", bad))
	for _, onDemand := range []bool{false, true} {
		key := &class.Key{
			Type: class.Sidecar, Interception: class.Redirect, Namespace: "default", DNSDomain: "default.svc.cluster.local",
			VirtualHosts: true, OnDemand: onDemand,
		}
		r := newReader(key, state)
		_, err := route.VirtualHosts{}.Build(r, "80/a.default.svc.cluster.local:80")
		if err == nil || !strings.HasPrefix(err.Error(), "VirtualService default/bad: http[0].match[0].uri: regular expression") {
			t.Errorf("error %v", err)
		}
		if m, err := (route.VirtualHosts{}).Build(r, "80/b.default.svc.cluster.local:80"); m == nil || err != nil {
			t.Errorf("the other host: %v, %v", m, err)
		}
		if rc, err := (route.Translator{}).Build(r, "80"); rc == nil || err != nil {
			t.Errorf("the route configuration: %v, %v", rc, err)
		}
	}
}

// Requests for hosts that do not exist must not make xds-server remember more and more.
func TestUnknownHostsAreNotRemembered(t *testing.T) {
	key := &class.Key{
		Type: class.Sidecar, Interception: class.Redirect, Namespace: "default", DNSDomain: "default.svc.cluster.local",
		VirtualHosts: true, OnDemand: true,
	}
	r := newReader(key, meshtest.State(t, meshtest.Service("default", "*.a.a", 80)))
	host := strings.Repeat("a.", 127) + "a"
	m, err := route.VirtualHosts{}.Build(r, "80/"+host)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.(*routev3.VirtualHost).GetRoutes()[0].GetRoute().GetCluster(); got != "outbound|80||*.a.a" {
		t.Errorf("the host leads to %q", got)
	}
	if n := len(r.Dependencies()); n > 120 {
		t.Errorf("the answer depends on %d look-ups", n)
	}
}
