package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/object"
)

var age = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// east is a registry with the rule for all services, or the given ones.
func east(rules ...Rule) *Registry {
	if len(rules) == 0 {
		rules = []Rule{{Services: []string{"*"}, Namespace: "consul"}}
	}
	return &Registry{Name: "east", Datacenter: "dc1", Domain: "consul", Rules: rules, Created: age}
}

// web is a passing instance of service web, as the functions change it.
func web(n int, change ...func(*Instance)) Instance {
	in := Instance{Node: fmt.Sprintf("n%d", n), Datacenter: "dc1", ID: fmt.Sprintf("web-%d", n), Service: "web",
		Address: fmt.Sprintf("10.0.0.%d", n), NodeAddress: fmt.Sprintf("10.9.0.%d", n), Port: 8080, Status: StatusPassing,
		Weights: Weights{Passing: 1, Warning: 1}}
	for _, f := range change {
		f(&in)
	}
	return in
}

func meta(key, value string) func(*Instance) {
	return func(in *Instance) {
		in.Meta = maps.Clone(in.Meta)
		if in.Meta == nil {
			in.Meta = map[string]string{}
		}
		in.Meta[key] = value
	}
}

func entryOf(m Mapping) *networking.ServiceEntry { return m.Entry.Body.(*networking.ServiceEntry) }

func workloadOf(o *object.Object) *networking.WorkloadEntry {
	return o.Body.(*networking.WorkloadEntry)
}

// only is the WorkloadEntry of the only instance.
func only(t *testing.T, m Mapping) (*object.Object, *networking.WorkloadEntry) {
	t.Helper()
	if len(m.Workloads) != 1 {
		t.Fatalf("%d WorkloadEntries, want 1; problems %v", len(m.Workloads), m.Problems)
	}
	return m.Workloads[0], workloadOf(m.Workloads[0])
}

// portsText lists the ports of a ServiceEntry: "name number protocol".
func portsText(m Mapping) []string {
	var out []string
	for _, p := range entryOf(m).Ports {
		out = append(out, fmt.Sprintf("%s %d %s", p.Name, p.Number, p.Protocol))
	}
	return out
}

// mentions reports the texts that no problem has.
func mentions(t *testing.T, m Mapping, want ...string) {
	t.Helper()
	text := m.Problems.Error()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("problems %q lack %q", text, w)
		}
	}
	if len(want) == 0 && text != "" {
		t.Errorf("problems %q, want none", text)
	}
	for _, p := range m.Problems {
		if p.Remedy == "" || p.Location != "consul/east" {
			t.Errorf("problem %v has no remedy, or not the place of its registry", p)
		}
	}
}

func TestAServiceBecomesAServiceEntryAndItsInstancesWorkloadEntries(t *testing.T) {
	m := east().Map("Web", []Instance{web(2), web(1)})
	mentions(t, m)
	if m.Entry.Key.String() != "ServiceEntry consul/consul.east.web" || m.Entry.Source != "consul/east" || !m.Entry.Created.Equal(age) {
		t.Errorf("entry %v of %s, %v", m.Entry.Key, m.Entry.Source, m.Entry.Created)
	}
	se := entryOf(m)
	if !slices.Equal(se.Hosts, []string{"web.service.consul"}) || se.Resolution != networking.ServiceEntry_STATIC ||
		se.Location != networking.ServiceEntry_MESH_EXTERNAL {
		t.Errorf("entry %v", se)
	}
	if got, want := m.Entry.Registered.Aliases, []string{"web.service.dc1.dc.consul", "web.virtual.consul"}; !slices.Equal(got, want) {
		t.Errorf("aliases %v, want %v", got, want)
	}
	if len(m.Workloads) != 2 || m.Workloads[0].Key.Name == m.Workloads[1].Key.Name {
		t.Fatalf("workloads %v", m.Workloads)
	}
	for _, o := range m.Workloads {
		we := workloadOf(o)
		if we.Labels[LabelService] != se.WorkloadSelector.Labels[LabelService] || o.Registered.Service != m.Entry.Key.Name ||
			we.Ports[MainPort] != 8080 || !o.Health.Well {
			t.Errorf("workload %v of %v", we, o.Registered)
		}
	}
}

// Equal catalogs give equal objects, in whatever order the instances come.
func TestObjectsDependOnTheCatalogAlone(t *testing.T) {
	all := []Instance{web(1, meta("version", "v1")), web(2), web(3, func(in *Instance) { in.Tags = []string{"a", "b"} })}
	first := east().Map("web", slices.Clone(all))
	slices.Reverse(all)
	if again := east().Map("web", all); !reflect.DeepEqual(first, again) {
		t.Errorf("got %v, then %v", first, again)
	}
	all[0].Status = StatusCritical
	if changed := east().Map("web", all); changed.Entry.Digest != first.Entry.Digest {
		t.Error("health of an instance changes the ServiceEntry")
	}
}

func TestHostsOfTagsAndDatacenters(t *testing.T) {
	tagged := func(n int, tags ...string) Instance { return web(n, func(in *Instance) { in.Tags = tags }) }
	m := east().Map("web", []Instance{tagged(1, "v1", "primary", "Not a host"), tagged(2, "V1", "replica")})
	if got := m.Entry.Registered.Aliases; !slices.Contains(got, "v1.web.service.consul") {
		t.Errorf("aliases %v lack the tag that all instances have", got)
	} else if len(got) != 3 {
		t.Errorf("aliases %v: a tag of one instance alone leads to all of them", got)
	}
	r := east()
	r.Qualified = true
	m = r.Map("web", []Instance{tagged(1, "v1")})
	if got := append(entryOf(m).Hosts, m.Entry.Registered.Aliases...); !slices.Equal(got,
		[]string{"web.service.dc1.dc.consul", "v1.web.service.dc1.dc.consul"}) {
		t.Errorf("hosts with the datacenter: %v", got)
	}
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("t%d", i)
	}
	m = east().Map("web", []Instance{tagged(1, many...)})
	mentions(t, m, "40 tags")
	if got := len(m.Entry.Registered.Aliases); got != 2+maxTags {
		t.Errorf("%d aliases", got)
	}
}

func TestPortsAndProtocols(t *testing.T) {
	port := func(n int) func(*Instance) { return func(in *Instance) { in.Port = n } }
	named := func(ports map[string]int) func(*Instance) { return func(in *Instance) { in.Ports, in.Port = ports, 0 } }
	rule := func(r Rule) Rule {
		r.Services, r.Namespace = []string{"*"}, "consul"
		return r
	}
	for name, tc := range map[string]struct {
		rule      Rule
		instances []Instance
		want      []string
		problems  []string
	}{
		"the port that all have": {Rule{}, []Instance{web(1), web(2)}, []string{"service 8080 TCP"}, nil},
		"dynamic ports":          {Rule{}, []Instance{web(1, port(20001)), web(2, port(20002))}, []string{"service 80 TCP"}, nil},
		"meta":                   {Rule{}, []Instance{web(1, meta("port", "81"), meta("protocol", "HTTP"))}, []string{"service 81 HTTP"}, nil},
		"the rule before meta": {Rule{Port: 82, Protocol: "GRPC"},
			[]Instance{web(1, meta("port", "81"), meta("protocol", "http"))}, []string{"service 82 GRPC"}, []string{"none"}},
		"two protocols": {Rule{}, []Instance{web(1, meta("protocol", "http")), web(2, meta("protocol", "grpc")), web(3, meta("protocol",
			"http"))},
			[]string{"service 8080 HTTP"}, []string{"grpc, http; http counts"}},
		"as many of each": {Rule{}, []Instance{web(1, meta("protocol", "http")), web(2, meta("protocol", "grpc"))},
			[]string{"service 8080 GRPC"}, []string{"grpc counts"}},
		"no protocol": {Rule{}, []Instance{web(1, meta("protocol", "smtp"))}, []string{"service 8080 TCP"}, []string{`"smtp" is not possible`}},
		"UDP is not proxied": {Rule{}, []Instance{web(1, meta("protocol", "udp"))}, []string{"service 8080 TCP"},
			[]string{`"udp" is not possible`}},
		"no port in meta": {Rule{}, []Instance{web(1, meta("port", "0"))}, []string{"service 8080 TCP"}, []string{`"0" is not possible`}},
		"named ports": {Rule{}, []Instance{web(1, named(map[string]int{"http": 8080, "grpc": 9090})), web(2,
			named(map[string]int{"http": 8080}))},
			[]string{"grpc 9090 GRPC", "http 8080 HTTP"}, nil},
		"numbers of named ports": {Rule{Ports: map[string]uint32{"admin": 90}},
			[]Instance{web(1, named(map[string]int{"http": 1, "admin": 2})), web(2, named(map[string]int{"http": 3, "admin": 4}))},
			[]string{"admin 90 TCP", "http 80 HTTP"}, nil},
		"named ports of one number": {Rule{}, []Instance{web(1, named(map[string]int{"a": 1, "b": 2})), web(2,
			named(map[string]int{"a": 3, "b": 4}))},
			[]string{"a 80 TCP"}, []string{"has the number 80, which port a has"}},
		"no name of a port": {Rule{}, []Instance{web(1, named(map[string]int{"a b": 1, "c": 2}))}, []string{"c 2 TCP"}, []string{`"a b"`}},
		"nobody is there":   {Rule{Port: 82}, nil, []string{"service 82 TCP"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := east(rule(tc.rule)).Map("web", tc.instances)
			if got := portsText(m); !slices.Equal(got, tc.want) {
				t.Errorf("ports %v, want %v", got, tc.want)
			}
			if !slices.Equal(tc.problems, []string{"none"}) {
				mentions(t, m, tc.problems...)
			}
		})
	}
}

// An instance gets traffic on the ports alone that it says.
func TestTargetPorts(t *testing.T) {
	m := east().Map("web", []Instance{
		web(1, func(in *Instance) { in.Ports, in.Port = map[string]int{"http": 8080, "grpc": 9090}, 8080 }),
		web(2, func(in *Instance) { in.Ports, in.Port = map[string]int{"http": 8081}, 0 }),
		web(3),
	})
	got := map[string]map[string]uint32{}
	for _, o := range m.Workloads {
		got[workloadOf(o).Address] = workloadOf(o).Ports
	}
	want := map[string]map[string]uint32{"10.0.0.1": {"http": 8080, "grpc": 9090}, "10.0.0.2": {"http": 8081}, "10.0.0.3": {MainPort: 8080}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
}

func TestAddresses(t *testing.T) {
	tagged := func(a map[string]Address) func(*Instance) { return func(in *Instance) { in.TaggedAddresses = a } }
	at := func(a string) func(*Instance) { return func(in *Instance) { in.Address = a } }
	node := func(a string) func(*Instance) { return func(in *Instance) { in.NodeAddress = a } }
	all := tagged(map[string]Address{"lan": {Address: "10.1.1.1", Port: 81}, "wan": {Address: "192.0.2.1", Port: 90}})
	for name, tc := range map[string]struct {
		wan      bool
		in       Instance
		want     string // address and port; "" if it is left out
		problems []string
	}{
		"the service's":         {false, web(1, all), "10.0.0.1 8080", nil},
		"else the node's":       {false, web(1, at("")), "10.9.0.1 8080", nil},
		"tagged":                {false, web(1, at(""), all), "10.1.1.1 81", nil},
		"across networks":       {true, web(1, all), "192.0.2.1 90", nil},
		"across, without a tag": {true, web(1), "10.0.0.1 8080", nil},
		"the node's tagged": {true, web(1, at(""), func(in *Instance) {
			in.NodeTaggedAddresses = map[string]string{"lan": "10.9.9.9", "wan": "192.0.2.9"}
		}), "192.0.2.9 8080", nil},
		"IPv6":                 {false, web(1, at("2001:DB8::1")), "2001:db8::1 8080", nil},
		"a name":               {false, web(1, at("Web.Example.com.")), "web.example.com 8080", nil},
		"no address":           {false, web(1, at(""), node("")), "", []string{"has no address", "n1/web-1"}},
		"no name":              {false, web(1, at("a_b c")), "", []string{`"a_b c" is neither`}},
		"this machine":         {false, web(1, at("127.0.0.1")), "", []string{"loopback", "--registry-allow-addresses"}},
		"this machine by name": {false, web(1, at("localhost")), "", []string{"localhost"}},
		"metadata":             {false, web(1, at("169.254.169.254")), "", []string{"metadata"}},
		"any":                  {false, web(1, at("0.0.0.0")), "", []string{"unspecified"}},
		"a port 0":             {false, web(1, func(in *Instance) { in.Port = 0 }), "", []string{"has no port (it says 0)"}},
		"a port too large":     {false, web(1, func(in *Instance) { in.Port = 70000 }), "", []string{"has no port (it says 70000)"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := east()
			r.WAN = tc.wan
			m := r.Map("web", []Instance{tc.in})
			mentions(t, m, tc.problems...)
			if tc.want == "" {
				if len(m.Workloads) != 0 || m.LeftOut != 1 || m.Entry == nil {
					t.Errorf("mapping %v", m)
				}
				return
			}
			_, we := only(t, m)
			if got := fmt.Sprint(we.Address, " ", we.Ports[MainPort]); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
	r := east(Rule{Services: []string{"web"}, Namespace: "x", Port: 90})
	r.Addresses = fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	m := r.Map("web", []Instance{web(1, at("127.0.0.1"), func(in *Instance) { in.Port = 0 })})
	mentions(t, m)
	if _, we := only(t, m); we.Ports[MainPort] != 90 || we.Address != "127.0.0.1" {
		t.Errorf("the rule's port is that of an instance without one, and the address is allowed: %v", we)
	}
}

func TestAnInstanceWithANameMakesTheServiceDNS(t *testing.T) {
	m := east().Map("web", []Instance{web(1), web(2, func(in *Instance) { in.Address = "web.example.com" })})
	if entryOf(m).Resolution != networking.ServiceEntry_DNS || len(m.Workloads) != 2 {
		t.Errorf("mapping %v", m)
	}
	mentions(t, m, "n2/web-2 has the name web.example.com and 1 instances have IP addresses")
}

func TestHealthAndWeights(t *testing.T) {
	status := func(s string, passing, warning int) Instance {
		return web(1, func(in *Instance) { in.Status, in.Weights = s, Weights{Passing: passing, Warning: warning} })
	}
	for name, tc := range map[string]struct {
		in             Instance
		well, draining bool
		weight         uint32
	}{
		"passing":               {status(StatusPassing, 7, 2), true, false, 7},
		"warning":               {status(StatusWarning, 7, 2), true, false, 2},
		"warning, none wanted":  {status(StatusWarning, 7, 0), false, false, 7},
		"warning, no weights":   {status(StatusWarning, 0, 0), true, false, 1},
		"critical":              {status(StatusCritical, 7, 2), false, false, 7},
		"maintenance":           {status(StatusMaintenance, 7, 2), false, true, 7},
		"unknown":               {status("purple", 7, 2), false, false, 7},
		"too large a weight":    {status(StatusPassing, 1<<40, 2), true, false, maxWeight},
		"a weight less than 0":  {status(StatusPassing, -3, 2), true, false, 1},
		"warning less than 0":   {status(StatusWarning, 7, -3), false, false, 7},
		"a passing weight of 0": {status(StatusPassing, 0, 2), true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o, we := only(t, east().Map("web", []Instance{tc.in}))
			if o.Health.Well != tc.well || o.Health.Draining != tc.draining || we.Weight != tc.weight || !o.Health.Counts {
				t.Errorf("health %v, weight %d", o.Health, we.Weight)
			}
		})
	}
}

func TestLocality(t *testing.T) {
	in := func(region, zone string, nodeMeta map[string]string) Instance {
		return web(1, func(in *Instance) { in.Locality, in.NodeMeta = Locality{Region: region, Zone: zone}, nodeMeta })
	}
	for want, i := range map[string]Instance{
		"eu/a":  in("eu", "a", map[string]string{"region": "us"}),
		"us/b":  in("", "", map[string]string{"region": "us", "zone": "b"}),
		"dc1":   in("", "", nil),
		"dc1/c": in("e*u", "c", nil),
		"eu":    in("eu", "a/b", nil),
	} {
		if _, we := only(t, east().Map("web", []Instance{i})); we.Locality != want {
			t.Errorf("locality %q, want %q", we.Locality, want)
		}
	}
}

func TestLabels(t *testing.T) {
	in := web(1, meta("version", "v1"), meta("color", "blue"), meta("text", "two words"), meta("a/b", "c"), func(in *Instance) {
		in.Tags = []string{"fast", "version=v0", "zone|z1", "urlprefix-/x", "traefik.enable=true", "two words"}
	})
	m := east().Map("web", []Instance{in})
	_, we := only(t, m)
	want := map[string]string{"version": "v1", "color": "blue", "tag/fast": "true", "zone": "z1", "traefik.enable": "true",
		LabelService: "web"}
	if !maps.Equal(we.Labels, want) {
		t.Errorf("labels %v, want %v", we.Labels, want)
	}
	mentions(t, m, "4 entries of meta and tags are no labels", "text", "a/b")
}

// Whatever a registration says, without the rule's word it has no identity and is not spoken to by mesh TLS.
func TestNoRegistrationGivesAnIdentity(t *testing.T) {
	greedy := web(1, func(in *Instance) {
		in.Meta = map[string]string{"serviceAccount": "admin", "account": "admin", "security.istio.io/tlsMode": "istio", "tlsMode": "istio",
			"security_istio_io_tlsMode": "istio", "istio": "ingressgateway", "istio-locality": "x.y", "subjectAltNames": "spiffe://cluster.local/ns/a/sa/b",
			"topology.istio.io/network": "n", LabelService: "payments", "spiffe": "spiffe://cluster.local/ns/a/sa/b"}
		in.Tags = []string{"security.istio.io/tlsMode=istio", "serviceAccount=admin", "security.istio.io/tlsMode|istio", "istio=ingressgateway"}
		in.NodeMeta = in.Meta
	})
	for name, account := range map[string]string{"without": "", "with": "web"} {
		t.Run(name, func(t *testing.T) {
			m := east(Rule{Services: []string{"*"}, Namespace: "shop", Account: account}).Map("web", []Instance{greedy})
			o, we := only(t, m)
			se := entryOf(m)
			if we.ServiceAccount != account || len(se.SubjectAltNames) != 0 || we.Network != "" || len(o.Labels)+len(m.Entry.Labels) != 0 {
				t.Errorf("entry %v, workload %v", se, we)
			}
			for key := range we.Labels {
				if strings.Contains(key, "/") && key != LabelService && !strings.HasPrefix(key, tagPrefix) || key == "istio" ||
					key == "istio-locality" {
					t.Errorf("label %s of the registration counts", key)
				}
			}
			if we.Labels[LabelService] != "web" || len(o.Annotations) != 1 || len(m.Entry.Annotations) != 0 {
				t.Errorf("labels %v, annotations %v %v", we.Labels, o.Annotations, m.Entry.Annotations)
			}
			if internal := se.Location == networking.ServiceEntry_MESH_INTERNAL; internal != (account != "") {
				t.Errorf("location %v", se.Location)
			}
		})
	}
}

func TestWhatIsLeftOut(t *testing.T) {
	proxy := web(1, func(in *Instance) { in.Kind = "connect-proxy" })
	if m := east().Map("web-sidecar-proxy", []Instance{proxy}); m.Entry != nil || len(m.Problems) != 0 || m.Rule != -1 {
		t.Errorf("a sidecar of Connect becomes %v", m)
	}
	if m := east().Map("web", []Instance{proxy, web(2)}); len(m.Workloads) != 1 {
		t.Errorf("a sidecar beside an instance: %v", m)
	}
	if m := east().Map("consul", []Instance{web(1)}); m.Entry != nil {
		t.Error("Consul's servers become a service by a pattern")
	}
	if m := east(Rule{Services: []string{"consul"}, Namespace: "x"}).Map("consul", []Instance{web(1)}); m.Entry == nil {
		t.Error("Consul's servers do not become a service by their name")
	}
	if m := east(Rule{Services: []string{"db-*"}, Namespace: "x"}).Map("web", []Instance{web(1)}); m.Entry != nil || m.Rule != -1 {
		t.Error("a service that no rule matches becomes one")
	}
	for _, name := range []string{"a_b", "*", "", "-a", strings.Repeat("a", 300), "a.b", "ü", "a/b", "a\nb"} {
		r := east(Rule{Services: []string{name, "*"}, Namespace: "x"})
		m := r.Map(name, []Instance{web(1)})
		if m.Entry != nil || len(m.Workloads) != 0 {
			t.Errorf("service %q becomes %v", name, m.Entry.Key)
		}
		if name != "a/b" || len(m.Problems) > 0 { // no pattern matches a slash
			mentions(t, m, "no label of the DNS")
		}
	}
	long := east()
	long.Domain = strings.Repeat("a.", 100) + "consul"
	if m := long.Map(strings.Repeat("a", 63), nil); m.Entry != nil {
		t.Error("a host of more than 253 characters")
	} else {
		mentions(t, m, "253 are possible")
	}
}

func TestTheFirstRuleDecides(t *testing.T) {
	r := east(Rule{Services: []string{"db", "web-*"}, Namespace: "a"}, Rule{Services: []string{"web*"}, Namespace: "b"})
	for name, want := range map[string]string{"db": "a", "web-1": "a", "web": "b"} {
		if got := r.Map(name, nil).Entry.Key.Namespace; got != want {
			t.Errorf("service %s is in namespace %s, want %s", name, got, want)
		}
	}
}

func TestNumbersAreBounded(t *testing.T) {
	many := make([]Instance, maxInstances+1)
	for i := range many {
		many[i] = web(1, func(in *Instance) { in.ID, in.Address, in.NodeAddress = fmt.Sprint(i), "", "" })
	}
	m := east().Map("web", many)
	if len(m.Problems) != maxProblems || m.LeftOut != maxInstances+1 {
		t.Errorf("%d problems, %d left out", len(m.Problems), m.LeftOut)
	}
	mentions(t, m, "20001 instances", fmt.Sprintf("and %d more problems", maxInstances+1-maxProblems))
}

func TestNamesThatDifferInCaseAlone(t *testing.T) {
	got := Shadowed([]string{"Web", "db", "WEB", "web", "API", "api2", "Api"})
	if want := map[string]string{"Web": "web", "WEB": "web", "Api": "API"}; !maps.Equal(got, want) {
		t.Errorf("shadowed %v, want %v", got, want)
	}
	if got := Shadowed([]string{"a", "b"}); got != nil {
		t.Errorf("shadowed %v", got)
	}
	if p := east().ShadowedProblem("Web", "web"); p.Remedy == "" || !strings.Contains(p.Error(), `"web", which counts`) {
		t.Error(p)
	}
}

// FuzzMap feeds arbitrary text of a registration: nothing panics, and what comes out has a host below the domain, the
// rule's namespace and no identity.
func FuzzMap(f *testing.F) {
	f.Add("web", "10.0.0.1", "v1", "protocol", "http", 80, "passing")
	f.Add("a_b", "localhost", "a=b", "port", "-1", -1, "")
	f.Fuzz(func(t *testing.T, service, address, tag, key, value string, port int, status string) {
		in := web(1, meta(key, value), func(in *Instance) {
			in.Service, in.Address, in.Tags, in.Port, in.Status = service, address, []string{tag}, port, status
			in.Ports = map[string]int{tag: port}
		})
		m := east().Map(service, []Instance{in})
		if m.Entry == nil {
			return
		}
		if host := entryOf(m).Hosts[0]; !strings.HasSuffix(host, ".service.consul") || m.Entry.Key.Namespace != "consul" {
			t.Errorf("host %q in %s", host, m.Entry.Key.Namespace)
		}
		for _, o := range m.Workloads {
			if we := workloadOf(o); we.ServiceAccount != "" || len(we.Ports) == 0 {
				t.Errorf("workload %v", we)
			}
		}
	})
}

func TestAPreviewSaysWhatACatalogBecomes(t *testing.T) {
	r := east(Rule{Services: []string{"web", "WEB", "a_b"}, Namespace: "shop", Account: "web", Protocol: "HTTP", Joins: "web.shop.svc.cluster.local",
		Share: 20})
	catalog := map[string][]Instance{"web": {web(1), web(2, func(in *Instance) { in.Status = StatusCritical }), web(3,
		func(in *Instance) { in.Port = 0 })},
		"WEB": {web(4)}, "a_b": nil, "db": {web(5)}}
	got := r.Preview(catalog, func(host string) string {
		if host == "web.virtual.consul" {
			return "ServiceEntry a/b"
		}
		return ""
	})
	want := []PreviewService{{Name: "web", Namespace: "shop", Account: "web", Joins: "web.shop.svc.cluster.local", Share: 20,
		Instances: 2, Ready: 1,
		LeftOut: 1, Hosts: []string{"web.service.consul", "web.service.dc1.dc.consul", "web.virtual.consul"},
		Ports: []PreviewPort{{MainPort, 8080, "HTTP"}}}}
	if !reflect.DeepEqual(got.Services, want) || !slices.Equal(got.Unmatched, []string{"db"}) {
		t.Errorf("preview %+v", got)
	}
	mentions(t, Mapping{Problems: got.Problems}, `"WEB": has the same host`, `"a_b": is no label`, "n3/web-3",
		"ServiceEntry a/b has this host")
}
