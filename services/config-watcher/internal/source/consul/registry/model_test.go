package registry_test

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

// The model says in a few lines what a mesh has of a catalog: it shares no code with package registry.

// endpoint is what the model says of one endpoint of a service port.
type endpoint struct {
	port     uint32
	health   configv1.Health
	weight   uint32
	locality string
	identity string
}

// service is what it says of a service: its ports with their protocols, and by port and address the endpoints.
type service struct {
	namespace string
	aliases   []string
	// accepts is the name that clients accept, whether there is an endpoint or not.
	accepts   string
	dns       bool
	ports     map[uint32]string
	endpoints map[string]endpoint
}

// modelOf is the mesh of a catalog, by host.
func modelOf(r *registry.Registry, catalog map[string][]registry.Instance) map[string]*service {
	out := map[string]*service{}
	for name, all := range catalog {
		var instances []registry.Instance
		for _, in := range all {
			if in.Kind == "" {
				instances = append(instances, in)
			}
		}
		var rule *registry.Rule
		for i := range r.Rules {
			for _, pattern := range r.Rules[i].Services {
				if ok, _ := path.Match(pattern, name); ok && rule == nil && name != "consul" {
					rule = &r.Rules[i]
				}
			}
		}
		if rule == nil || strings.ContainsAny(name, "_*") || len(name) > 63 || len(instances) == 0 && len(all) > 0 {
			continue
		}
		s := &service{namespace: rule.Namespace, ports: map[uint32]string{}, endpoints: map[string]endpoint{}}
		number, protocol := numberOf(rule, instances), cmp.Or(rule.Protocol, mostly(instances, "protocol", "http", "grpc"), "TCP")
		s.ports[number] = strings.ToUpper(protocol)
		if rule.Account != "" {
			s.accepts = "spiffe://cluster.local/ns/" + rule.Namespace + "/sa/" + rule.Account
		}
		tags := map[string]int{}
		for _, in := range instances {
			for _, tag := range in.Tags {
				tags[tag]++
			}
			address := cmp.Or(in.Address, in.NodeAddress)
			port := uint32(in.Port)
			if in.Port == 0 {
				port = rule.Port
			}
			if address == "" || strings.HasPrefix(address, "127.") || port == 0 {
				continue
			}
			s.dns = s.dns || strings.Contains(address, "example")
			e := endpoint{port: port, health: configv1.Health_HEALTH_READY, weight: uint32(in.Weights.Passing), locality: cmp.Or(in.Locality.Region, "dc1")}
			switch in.Status {
			case "warning":
				if e.weight = uint32(in.Weights.Warning); in.Weights.Warning == 0 {
					e.weight, e.health = uint32(in.Weights.Passing), configv1.Health_HEALTH_NOT_READY
				}
			case "critical":
				e.health = configv1.Health_HEALTH_NOT_READY
			case "maintenance":
				e.health = configv1.Health_HEALTH_DRAINING
			}
			e.identity = s.accepts
			s.endpoints[fmt.Sprint(number, " ", address)] = e
		}
		host := name + ".service.consul"
		s.aliases = []string{name + ".service.dc1.dc.consul", name + ".virtual.consul"}
		for tag, n := range tags {
			if n == len(instances) {
				s.aliases = append(s.aliases, tag+"."+host)
			}
		}
		out[host] = s
	}
	return out
}

func numberOf(rule *registry.Rule, instances []registry.Instance) uint32 {
	if rule.Port != 0 {
		return rule.Port
	}
	if text := mostly(instances, "port", "81", "82"); text != "" {
		return map[string]uint32{"81": 81, "82": 82}[text]
	}
	first := 0
	for _, in := range instances {
		if in.Port != 0 && first == 0 {
			first = in.Port
		}
		if in.Port != 0 && in.Port != first {
			return 80
		}
	}
	return uint32(cmp.Or(first, 80))
}

// mostly is the value, of those that are possible, that most instances have in their meta.
func mostly(instances []registry.Instance, key string, possible ...string) string {
	best, most := "", 0
	slices.Sort(possible)
	for _, value := range possible {
		n := 0
		for _, in := range instances {
			if in.Meta[key] == value {
				n++
			}
		}
		if n > most {
			best, most = value, n
		}
	}
	return best
}

// drawCatalog draws services with instances of unique addresses.
func drawCatalog(t *rapid.T) map[string][]registry.Instance {
	out := map[string][]registry.Instance{}
	n := 0
	for range rapid.IntRange(0, 5).Draw(t, "services") {
		name := rapid.SampledFrom([]string{"web", "web-2", "db", "a_b", "*", "consul", strings.Repeat("x", 300), "api"}).Draw(t, "name")
		out[name] = nil
		for range rapid.IntRange(0, 5).Draw(t, "instances") {
			n++
			pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
			in := registry.Instance{Node: fmt.Sprint("n", n), Datacenter: "dc1", ID: fmt.Sprint(name, n), Service: name,
				Kind:        pick("kind", "", "", "", "", "connect-proxy"),
				Address:     pick("address", fmt.Sprint("10.0.0.", n), fmt.Sprint("10.0.0.", n), "", "127.0.0.1", fmt.Sprintf("h%d.example.com", n)),
				NodeAddress: pick("node", fmt.Sprint("10.1.0.", n), ""),
				Port:        rapid.SampledFrom([]int{0, 8080, 8080, 8080, 20000 + n}).Draw(t, "port"),
				Status:      pick("status", "passing", "passing", "warning", "critical", "maintenance"),
				Weights:     registry.Weights{Passing: rapid.IntRange(1, 9).Draw(t, "passing"), Warning: rapid.IntRange(0, 9).Draw(t, "warning")},
				Locality:    registry.Locality{Region: pick("region", "", "eu")},
				Meta: map[string]string{"protocol": pick("protocol", "", "http", "grpc", "smtp"), "port": pick("meta port", "", "81", "82", "x"),
					"serviceAccount": "admin", "security.istio.io/tlsMode": "istio"},
			}
			for _, tag := range []string{"v1", "v2"} {
				if rapid.Bool().Draw(t, tag) {
					in.Tags = append(in.Tags, tag)
				}
			}
			out[name] = append(out[name], in)
		}
	}
	return out
}

func drawRegistry(t *rapid.T) *registry.Registry {
	r := &registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul", Created: time.Unix(1, 0)}
	for range rapid.IntRange(0, 3).Draw(t, "rules") {
		r.Rules = append(r.Rules, registry.Rule{
			Services:  rapid.SliceOfN(rapid.SampledFrom([]string{"web", "web*", "*", "db", "a?i"}), 1, 2).Draw(t, "patterns"),
			Namespace: rapid.SampledFrom([]string{"consul", "shop"}).Draw(t, "namespace"),
			Port:      rapid.SampledFrom([]uint32{0, 0, 90}).Draw(t, "rule port"),
			Protocol:  rapid.SampledFrom([]string{"", "", "HTTP2"}).Draw(t, "rule protocol"),
			Account:   rapid.SampledFrom([]string{"", "", "web"}).Draw(t, "account"),
		})
	}
	return r
}

// meshOf applies what the registry makes of catalogs, one after the other, and returns the resources.
func meshOf(t *rapid.T, r *registry.Registry, catalogs ...map[string][]registry.Instance) map[resource.Key]*configv1.Resource {
	mesh := normalise.New(normalise.Config{})
	held := map[resource.Key]*configv1.Resource{}
	var before []normalise.Change
	for _, catalog := range catalogs {
		now := map[string]normalise.Change{}
		for name, instances := range catalog {
			m := r.Map(name, slices.Clone(instances))
			if m.Entry != nil {
				now[m.Entry.Key.String()] = normalise.Change{Key: m.Entry.Key, Object: m.Entry}
			}
			for _, o := range m.Workloads {
				now[o.Key.String()] = normalise.Change{Key: o.Key, Object: o}
			}
		}
		changes := slices.Collect(maps.Values(now))
		for _, c := range before {
			if _, still := now[c.Key.String()]; !still {
				changes = append(changes, normalise.Change{Key: c.Key})
			}
		}
		before = slices.Collect(maps.Values(now))
		delta := mesh.Apply(changes)
		for _, err := range delta.Errors {
			t.Fatal(err)
		}
		for _, u := range delta.Upserts {
			held[resource.KeyOf(u.Key)] = u
		}
		for _, k := range delta.Removed {
			delete(held, k)
		}
	}
	return held
}

// The mesh that becomes of random catalogs and rules has the hosts, ports, health and weights of the model, whatever
// the catalog was before.
func TestTheMeshIsTheModels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRegistry(t)
		before, catalog := drawCatalog(t), drawCatalog(t)
		want := modelOf(r, catalog)
		got, aliases := map[string]*service{}, map[string][]string{}
		held := meshOf(t, r, before, catalog)
		for _, res := range held {
			res, err := resource.Decoded(res)
			if err != nil {
				t.Fatal(err)
			}
			s := res.GetService()
			switch {
			case s == nil:
			case s.ExternalName != "":
				aliases[s.ExternalName] = append(aliases[s.ExternalName], s.Hostname)
			default:
				at := &service{namespace: s.Namespace, dns: s.Resolution == configv1.Resolution_RESOLUTION_DNS, ports: map[uint32]string{},
					endpoints: map[string]endpoint{}}
				for _, p := range s.Ports {
					at.ports[p.Number] = strings.TrimPrefix(p.Protocol.String(), "PROTOCOL_")
					if p.Protocol == configv1.Protocol_PROTOCOL_TCP && len(s.Addresses) == 0 {
						t.Errorf("%s: port %d takes every connection to its number", s.Hostname, p.Number)
					}
				}
				at.accepts = strings.Join(s.SubjectAltNames, " ")
				got[s.Hostname] = at
			}
		}
		for _, res := range held {
			res, _ := resource.Decoded(res)
			set := res.GetEndpointSet()
			for _, e := range set.GetEndpoints() {
				if (e.TlsMode == configv1.TlsMode_TLS_MODE_ISTIO) != (e.Identity != "") {
					t.Errorf("%s: mode %v with identity %q", e.Address, e.TlsMode, e.Identity)
				}
				got[set.Hostname].endpoints[fmt.Sprint(set.Port, " ", e.Address)] = endpoint{port: e.Port, health: e.Health, weight: e.Weight,
					locality: set.Localities[e.Locality].GetRegion(), identity: e.Identity}
			}
		}
		for host, w := range want {
			g := got[host]
			if g == nil {
				t.Fatalf("no host %s; catalog %+v", host, catalog)
			}
			slices.Sort(w.aliases)
			slices.Sort(aliases[host])
			if g.namespace != w.namespace || g.accepts != w.accepts || g.dns != w.dns || !maps.Equal(g.ports, w.ports) ||
				!maps.Equal(g.endpoints, w.endpoints) || !slices.Equal(aliases[host], w.aliases) {
				t.Fatalf("%s: got %+v %v, want %+v; catalog %+v, rules %+v", host, g, aliases[host], w, catalog, r.Rules)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("hosts %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	})
}

// What is made again of a catalog that has changed a little is what is made of it for the first time.
func TestMappingAgainIsMapping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRegistry(t)
		others := drawRegistry(t)
		catalog := drawCatalog(t)
		last := map[string]*registry.Last{}
		for range 4 {
			by := r
			if rapid.IntRange(0, 3).Draw(t, "other rules") == 0 {
				by = others
			}
			for name, all := range catalog {
				slices.SortFunc(all, func(a, b registry.Instance) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID)) })
				if last[name] == nil {
					last[name] = &registry.Last{}
				}
				got, want := by.MapAgain(last[name], name, all), by.Map(name, slices.Clone(all))
				if diff := gocmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
					t.Fatal(diff)
				}
				// A little changes.
				next := slices.Clone(all)
				for i := range next {
					if rapid.IntRange(0, 2).Draw(t, "changes") == 0 {
						next[i].Status = rapid.SampledFrom([]string{"passing", "critical"}).Draw(t, "becomes")
						next[i].Port = rapid.SampledFrom([]int{8080, next[i].Port}).Draw(t, "port becomes")
					}
				}
				if len(next) > 0 && rapid.Bool().Draw(t, "one goes") {
					next = next[1:]
				}
				catalog[name] = next
			}
		}
	})
}

func TestUnchangedInstancesAreNotMadeAnew(t *testing.T) {
	r := &registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul", Rules: []registry.Rule{{Services: []string{"*"}, Namespace: "shop"}}}
	all := func(second string) []registry.Instance {
		one := registry.Instance{Node: "n", ID: "1", Service: "web", Address: "10.0.0.1", Port: 80, Status: "passing"}
		two := one
		two.ID, two.Status = "2", second
		return []registry.Instance{one, two}
	}
	var last registry.Last
	before := r.MapAgain(&last, "web", all("passing")).Workloads
	for i, now := range r.MapAgain(&last, "web", all("critical")).Workloads {
		if same := now == before[i]; same != (now.Annotations[registry.Annotation] == "n/1") {
			t.Errorf("%s is the same object: %v", now.Annotations, same)
		}
	}
}
