package mesh_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

var (
	namespaces = []string{"a", "b", "root"}
	hosts      = []string{"x.a", "y.a", "x.b", "z.example.com", "*.example.com"}
	exports    = [][]string{{"*"}, {"a"}, {"a", "b"}, {"root"}}
	labels     = []map[string]string{nil, {"app": "x"}, {"app": "y"}, {"app": "x", "version": "v1"}}
)

// drawResource makes a resource of a small world, so that edits meet each other.
func drawResource(t *rapid.T) *configv1.Resource {
	ns := rapid.SampledFrom(namespaces).Draw(t, "namespace")
	host := rapid.SampledFrom(hosts).Draw(t, "host")
	name := rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "name")
	export := meshtest.ExportedTo(rapid.SampledFrom(exports).Draw(t, "exported to")...)
	aged := meshtest.Aged(rapid.SampledFrom([]time.Duration{0, 1, 2}).Draw(t, "age"))
	selector := rapid.SampledFrom(labels).Draw(t, "labels")
	forAudience := func(r *configv1.Resource) *configv1.Resource {
		if to := rapid.SampledFrom([][]string{nil, nil, {"a"}, {"b"}, {"a", "b"}}).Draw(t, "audience"); to != nil {
			return meshtest.VisibleOnlyIn(r, to...)
		}
		return r
	}
	switch rapid.IntRange(0, 14).Draw(t, "kind") {
	case 0:
		return forAudience(meshtest.Service(ns, host, rapid.Uint32Range(80, 82).Draw(t, "port"),
			meshtest.Visible(rapid.SampledFrom(exports).Draw(t, "visible")...),
			func(s *configv1.Service) {
				s.Addresses = rapid.SampledFrom([][]string{nil, {"10.9.0.1"}, {"10.9.0.2", "10.9.0.1"}, {"10.0.0.0/8"}}).Draw(t, "vips")
				s.Headless = s.Addresses == nil && rapid.Bool().Draw(t, "headless")
				s.Ports[0].Protocol = rapid.SampledFrom([]configv1.Protocol{configv1.Protocol_PROTOCOL_HTTP, configv1.Protocol_PROTOCOL_TCP}).Draw(t,
					"protocol")
			}))
	case 1:
		return forAudience(meshtest.Endpoints(ns, host, rapid.Uint32Range(80, 82).Draw(t, "port"),
			rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(t, "address")))
	case 2:
		return meshtest.Workload(ns, name, rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(t, "address"))
	case 3:
		vs := &networking.VirtualService{Hosts: []string{host},
			Gateways: rapid.SampledFrom([][]string{nil, {"mesh", "a/gw"}, {"gw"}}).Draw(t, "gateways")}
		if selector != nil {
			vs.Http = []*networking.HTTPRoute{{Match: []*networking.HTTPMatchRequest{{SourceLabels: selector}}}}
		}
		return meshtest.Config(mesh.KindVirtualService, ns, name, vs, export, aged)
	case 4:
		return meshtest.Config(mesh.KindDestinationRule, ns, name, &networking.DestinationRule{Host: host}, export, aged)
	case 5:
		s := &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"./*"}}}}
		if selector != nil {
			s.WorkloadSelector = &networking.WorkloadSelector{Labels: selector}
		}
		return meshtest.Config(mesh.KindSidecar, ns, name, s, aged)
	case 6:
		return meshtest.PeerAuthentication(ns, name, rapid.SampledFrom([]string{"STRICT", "PERMISSIVE"}).Draw(t, "mode"),
			func(pa *security.PeerAuthentication) {
				if selector != nil {
					pa.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
				}
			})
	case 7:
		policy := &security.AuthorizationPolicy{}
		if selector != nil {
			policy.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
		}
		return meshtest.Config(mesh.KindAuthorizationPolicy, ns, name, policy, aged)
	case 8:
		tokens := &security.RequestAuthentication{}
		if selector != nil {
			tokens.TargetRef = &typev1beta1.PolicyTargetReference{Kind: "Gateway", Name: "g"}
		}
		return meshtest.Config(mesh.KindRequestAuthentication, ns, name, tokens, aged)
	case 9:
		return meshtest.Config(mesh.KindGateway, ns, name, &networking.Gateway{Selector: selector}, aged)
	case 10:
		keys := []byte(rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "keys"))
		return meshtest.Resource(mesh.KindJwks, "", contract.KeySource{URI: host}.Name(), &configv1.Resource{Body: &configv1.Resource_Jwks{
			Jwks: &configv1.Jwks{Uri: host, Keys: keys},
		}})
	case 11, 12, 13:
		return drawGatewayAPI(t, ns, name, host)
	default:
		return meshtest.Resource(mesh.KindNamespace, "", ns, &configv1.Resource{Body: &configv1.Resource_Namespace{
			Namespace: &configv1.Namespace{Name: ns, Labels: selector},
		}})
	}
}

// question is one look-up with all arguments and the topics by which its answer is found again.
type question struct {
	name   string
	topics []mesh.Topic
	ask    func(*mesh.Snapshot) string
}

// questions enumerates every look-up over the small world.
func questions() []question {
	var all []question
	add := func(name string, topics []mesh.Topic, ask func(*mesh.Snapshot) string) {
		all = append(all, question{name, topics, ask})
	}
	for _, ns := range namespaces {
		for _, in := range append([]string{""}, namespaces...) {
			add("ServicesIn "+ns+" "+in, mesh.ServicesInTopics(ns, in), func(s *mesh.Snapshot) string {
				var found []string
				s.ServicesIn(ns, in, func(svc *configv1.Service) { found = append(found, text(svc)) })
				return strings.Join(found, "\n")
			})
		}
		for _, host := range hosts {
			keys := contract.KeySource{URI: host}
			add("Jwks "+host, []mesh.Topic{mesh.JwksTopic(keys)}, func(s *mesh.Snapshot) string { return text(s.Jwks(keys)) })
			add("ServicesOf "+ns+" "+host, []mesh.Topic{mesh.ServiceTopic(host)},
				func(s *mesh.Snapshot) string { return texts(s.ServicesOf(host, ns)) })
			add("ServiceIn "+ns+" "+host, []mesh.Topic{mesh.ServiceTopic(host)},
				func(s *mesh.Snapshot) string { return text(s.ServiceIn(host, ns, 81)) })
			add("DestinationRules "+ns+" "+host, mesh.DestinationRulesTopics(host),
				func(s *mesh.Snapshot) string { return configs(s.DestinationRules(ns, host)) })
			for port := range uint32(3) {
				add(fmt.Sprint("Endpoints ", ns, host, port), []mesh.Topic{mesh.EndpointsTopic(host, 80+port)}, func(s *mesh.Snapshot) string {
					return texts(s.Endpoints(&configv1.Service{Hostname: host, Namespace: ns}, 80+port)) +
						texts(s.Endpoints(&configv1.Service{Hostname: host, Namespace: ns, Audience: "a"}, 80+port))
				})
			}
			for _, gw := range []string{"mesh", "a/gw", "b/gw"} {
				add("VirtualServicesOf "+ns+" "+gw+" "+host, mesh.VirtualServicesOfTopics(gw, host), func(s *mesh.Snapshot) string {
					return configs(s.VirtualServicesOf(ns, gw, host))
				})
			}
		}
		for _, gw := range []string{"mesh", "a/gw", "b/gw"} {
			add("VirtualServices "+ns+" "+gw, mesh.VirtualServicesTopics(ns, gw),
				func(s *mesh.Snapshot) string { return configs(s.VirtualServices(ns, gw)) })
		}
		for _, l := range labels {
			add(fmt.Sprint("Sidecar ", ns, l), mesh.SidecarTopics(ns, "c"), func(s *mesh.Snapshot) string {
				if found := s.Sidecar(ns, "c", l); found != nil {
					return found.Key.String() + fmt.Sprintf(" %x", found.Hash)
				}
				return ""
			})
		}
		for _, address := range []string{"", "10.0.0.1", "10.9.0.1"} {
			add("ServicesAt "+ns+address, []mesh.Topic{mesh.ServicesAtTopic(80, address)}, func(s *mesh.Snapshot) string {
				return texts(s.ServicesAt(ns, 80, address))
			})
		}
		for p := range configv1.Protocol_name {
			add(fmt.Sprint("Speaking ", ns, p), []mesh.Topic{mesh.SpeakingTopic(80, configv1.Protocol(p))}, func(s *mesh.Snapshot) string {
				var found []*configv1.Service
				s.Speaking(ns, 80, configv1.Protocol(p), func(svc *configv1.Service) bool {
					found = append(found, svc)
					return true
				})
				return texts(found)
			})
		}
		add("PeerAuthentications "+ns, []mesh.Topic{mesh.PeerAuthenticationsTopic(ns)},
			func(s *mesh.Snapshot) string { return configs(s.PeerAuthentications(ns)) })
		add("AuthorizationPolicies "+ns, mesh.PoliciesTopics(mesh.SubjectAuthorizationPolicies, ns),
			func(s *mesh.Snapshot) string { return configs(s.AuthorizationPolicies(ns)) })
		add("RequestAuthentications "+ns, mesh.PoliciesTopics(mesh.SubjectRequestAuthentications, ns),
			func(s *mesh.Snapshot) string { return configs(s.RequestAuthentications(ns)) })
		for _, host := range hosts {
			for _, in := range []string{"", ns} {
				add("ServiceAnywhere "+host+" "+in, []mesh.Topic{mesh.ServiceTopic(host)},
					func(s *mesh.Snapshot) string { return text(s.ServiceAnywhere(host, in)) })
			}
		}
		for _, name := range []string{"n1", "n2"} {
			add("Workload "+ns+name, []mesh.Topic{mesh.WorkloadTopic(ns, name)}, func(s *mesh.Snapshot) string { return text(s.Workload(ns, name)) })
		}
		add("RelevantLabels "+ns, append(mesh.Empty().RelevantLabelsTopics(ns), mesh.SettingsTopic()), func(s *mesh.Snapshot) string {
			return fmt.Sprint(s.RelevantLabels(ns, map[string]string{"app": "x", "version": "v1", "other": "o"}))
		})
	}
	for _, l := range labels {
		add(fmt.Sprint("Gateways ", l), mesh.GatewaysTopics(l), func(s *mesh.Snapshot) string { return configs(s.Gateways("", l)) })
	}
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		add("WorkloadsAt "+address, []mesh.Topic{mesh.AddressTopic(address)},
			func(s *mesh.Snapshot) string { return texts(s.WorkloadsAt(address)) })
	}
	return append(all, gatewayAPIQuestions()...)
}

func text(m proto.Message) string {
	if !m.ProtoReflect().IsValid() {
		return ""
	}
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return string(raw)
}

func texts[T proto.Message](list []T) string {
	var s []string
	for _, m := range list {
		s = append(s, text(m))
	}
	return strings.Join(s, "\n")
}

func configs[T proto.Message](list []*mesh.Config[T]) string {
	var s []string
	for _, c := range list {
		s = append(s, fmt.Sprintf("%s %x", c.Key, c.Hash))
	}
	return strings.Join(s, "\n")
}

// TestEditsAgreeWithAScratchBuild edits a small mesh at random. After each edit every answer must be that of a state
// built from scratch; an answer that has changed must have its topic touched; and the state before the edit must not
// have changed.
func TestEditsAgreeWithAScratchBuild(t *testing.T) {
	all := questions()
	rapid.Check(t, func(t *rapid.T) {
		state := mesh.Empty()
		held := map[string]*configv1.Resource{}
		for range rapid.IntRange(1, 12).Draw(t, "edits") {
			before := make([]string, len(all))
			for i, q := range all {
				before[i] = q.ask(state)
			}
			var upserts []*configv1.Resource
			var removed []*configv1.ResourceKey
			touched := map[string]bool{}
			for range rapid.IntRange(1, 4).Draw(t, "size") {
				r := drawResource(t)
				k := r.GetKey().String()
				if touched[k] {
					continue
				}
				touched[k] = true
				if held[k] != nil && rapid.Bool().Draw(t, "remove") {
					removed = append(removed, r.GetKey())
					delete(held, k)
				} else {
					upserts = append(upserts, r)
					held[k] = r
				}
			}
			next, change := state.Apply(&configv1.Revision{}, upserts, removed)
			if len(change.Rejected) > 0 {
				t.Fatal(change.Rejected)
			}
			scratch, err := mesh.FromResources(slices.Collect(values(held)))
			if err != nil {
				t.Fatal(err)
			}
			for i, q := range all {
				got := q.ask(next)
				if want := q.ask(scratch); got != want {
					t.Fatalf("%s: after edits %q, from scratch %q", q.name, got, want)
				}
				if again := q.ask(state); again != before[i] {
					t.Fatalf("%s: the edit changed the state before it from %q to %q", q.name, before[i], again)
				}
				if got != before[i] && !slices.ContainsFunc(q.topics, change.Topics.Has) {
					t.Fatalf("%s changed from %q to %q, but none of %v was touched: %v", q.name, before[i], got, q.topics, change.Topics)
				}
			}
			if next.Len() != len(held) {
				t.Fatalf("%d resources, want %d", next.Len(), len(held))
			}
			checkPrivate(t, next)
			state = next
		}
	})
}

// checkPrivate: an answer that a namespace gets and everybody does not has a topic that the state calls private to the
// namespace.
func checkPrivate(t *rapid.T, s *mesh.Snapshot) {
	check := func(name, ns string, topics []mesh.Topic, ask func(to string) string) {
		if own, all := ask(ns), ask(mesh.Global); own != all &&
			!slices.ContainsFunc(topics, func(t mesh.Topic) bool { return s.IsPrivate(ns, t) }) {
			t.Fatalf("%s is %q for %s and %q for everybody, but none of %v is private", name, own, ns, all, topics)
		}
	}
	for _, ns := range namespaces {
		for _, host := range hosts {
			check("ServicesOf "+host, ns, []mesh.Topic{mesh.ServiceTopic(host)}, func(to string) string { return texts(s.ServicesOf(host, to)) })
			check("visible rules of "+host, ns, mesh.DestinationRulesTopics(host), func(to string) string {
				var found []*mesh.DestinationRule
				for _, from := range []string{to, "a", "root"} {
					for h := range mesh.Covering(host) {
						found = append(found, s.DestinationRules(from, h)...)
					}
				}
				return configs(slices.DeleteFunc(found, func(r *mesh.DestinationRule) bool { return !r.Visible(to) }))
			})
			check("VirtualServicesOf "+host, ns, mesh.VirtualServicesOfTopics("mesh", host), func(to string) string {
				return configs(s.VirtualServicesOf(to, "mesh", host))
			})
		}
		for _, host := range hosts {
			check("ServiceRoutes "+host, ns, []mesh.Topic{mesh.ServiceRoutesTopic(host)}, func(to string) string {
				return keys(s.ServiceRoutes(host, 80, to, mesh.KindHTTPRoute))
			})
		}
		check("AuthorizationPolicies", ns, mesh.PoliciesTopics(mesh.SubjectAuthorizationPolicies, mesh.Global), func(to string) string {
			return configs(s.AuthorizationPolicies(to))
		})
		check("VirtualServices", ns, mesh.VirtualServicesTopics(mesh.Global, "mesh"), func(to string) string {
			return configs(s.VirtualServices(to, "mesh"))
		})
		check("ServicesIn", ns, mesh.ServicesInTopics(mesh.Global, ""), func(to string) string {
			var found []*configv1.Service
			s.ServicesIn(to, "", func(svc *configv1.Service) { found = append(found, svc) })
			return texts(found)
		})
		for _, address := range []string{"", "10.0.0.1", "10.9.0.1"} {
			check("ServicesAt "+address, ns, []mesh.Topic{mesh.ServicesAtTopic(80, address)}, func(to string) string {
				return texts(s.ServicesAt(to, 80, address))
			})
		}
		for _, wildcard := range []string{"*.example.com", "*.com", "*.a"} {
			check("AnyUnder "+wildcard, ns, []mesh.Topic{mesh.AnyUnderTopic(wildcard)}, func(to string) string {
				return fmt.Sprint(s.AnyUnder(to, wildcard))
			})
		}
		check("Speaking", ns, []mesh.Topic{mesh.SpeakingTopic(80, configv1.Protocol_PROTOCOL_TCP)}, func(to string) string {
			var found []*configv1.Service
			s.Speaking(to, 80, configv1.Protocol_PROTOCOL_TCP, func(svc *configv1.Service) bool {
				found = append(found, svc)
				return true
			})
			return texts(found)
		})
	}
}

func values(m map[string]*configv1.Resource) func(func(*configv1.Resource) bool) {
	return func(yield func(*configv1.Resource) bool) {
		for _, r := range m {
			if !yield(r) {
				return
			}
		}
	}
}
