package mesh_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// drawGatewayAPI makes an object of the Gateway API in the small world of drawResource.
func drawGatewayAPI(t *rapid.T, ns, name, host string) *configv1.Resource {
	set := rapid.SampledFrom([]string{"", "a/set"}).Draw(t, "set")
	age := rapid.SampledFrom([]int64{0, 1}).Draw(t, "age")
	aged := func(c *configv1.GatewayAPIConfig) { c.CreationTime.Seconds += age }
	switch rapid.IntRange(0, 3).Draw(t, "object") {
	case 0:
		kind := mesh.KindGatewayListeners
		if set != "" {
			kind = mesh.KindListenerSet
		}
		l := &configv1.GatewayListeners{Gateway: "a/gw", ListenerSet: set, Listeners: []*configv1.GatewayListener{{Name: "http", Port: 80}}}
		for _, selector := range rapid.SliceOfN(rapid.SampledFrom(labels[1:]), 0, 2).Draw(t, "selectors") {
			l.Selections = append(l.Selections, &configv1.WorkloadSelection{Namespace: ns, Labels: selector})
		}
		return meshtest.GatewayAPI(kind, ns, name, l, aged)
	case 1:
		return meshtest.GatewayAPI(mesh.KindBackendTLSPolicy, ns, name, &configv1.BackendTLS{Targets: []*configv1.BackendTLSTarget{
			{Hostname: host, Port: rapid.SampledFrom([]uint32{0, 80, 81}).Draw(t, "port")}, {Hostname: "x.a"},
		}}, aged)
	default:
		route := &configv1.AttachedRoute{Rank: []byte(name)}
		for _, domain := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "a.com", "b.com"}), 0, 2, rapid.ID).Draw(t, "domains") {
			route.Listeners = append(route.Listeners, &configv1.ListenerAttachment{
				Gateway: "a/gw", ListenerSet: set, Listener: "http" + domain, Hosts: []*configv1.AttachedHost{{Domain: domain}, {Domain: "c.com"}},
			})
		}
		if len(route.GetListeners()) < 2 {
			route.Services = []*configv1.ServiceAttachment{{
				Hostname: host, Port: rapid.SampledFrom([]uint32{0, 80}).Draw(t, "port"),
				ClientNamespace: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "client"),
			}}
		}
		route.Rules = []*configv1.AttachedRule{{
			Destinations: []*configv1.AttachedDestination{{Hostname: host}},
			Http: meshtest.Any(&networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{
				Host: host, Port: &networking.PortSelector{Number: rapid.SampledFrom([]uint32{80, 81}).Draw(t, "backend")},
			}}}}),
		}}
		kind := rapid.SampledFrom([]string{mesh.KindHTTPRoute, mesh.KindGRPCRoute, mesh.KindUDPRoute}).Draw(t, "route")
		return meshtest.GatewayAPI(kind, ns, name, route, aged)
	}
}

// gatewayAPIQuestions enumerates the look-ups of objects of the Gateway API.
func gatewayAPIQuestions() []question {
	var all []question
	add := func(name string, ask func(*mesh.Snapshot) string, topics ...mesh.Topic) {
		all = append(all, question{name, topics, ask})
	}
	for _, ns := range namespaces {
		for _, l := range labels {
			add(fmt.Sprint("GatewayListeners ", ns, l), func(s *mesh.Snapshot) string { return keys(s.GatewayListeners(ns, l)) },
				mesh.GatewayListenersTopics(ns, l)...)
			add(fmt.Sprint("IsGateway ", ns, l), func(s *mesh.Snapshot) string { return fmt.Sprint(s.IsGateway(ns, l)) },
				mesh.IsGatewayTopics(ns, l)...)
		}
		for _, port := range []uint32{80, 81} {
			add(fmt.Sprint("RoutesPort ", ns, port), func(s *mesh.Snapshot) string { return fmt.Sprint(s.RoutesPort(port, ns)) },
				mesh.RoutedPortTopics(port)...)
		}
		for _, host := range hosts {
			for _, port := range []uint32{80, 81} {
				add(fmt.Sprint("ServiceRoutes ", ns, host, port), func(s *mesh.Snapshot) string {
					return keys(s.ServiceRoutes(host, port, ns, mesh.KindHTTPRoute, mesh.KindGRPCRoute))
				}, mesh.ServiceRoutesTopic(host))
			}
		}
	}
	for _, host := range hosts {
		add("IsUDPBackend "+host, func(s *mesh.Snapshot) string { return fmt.Sprint(s.IsUDPBackend(host)) }, mesh.UDPBackendTopic(host))
		for _, port := range []uint32{80, 81, 82} {
			add(fmt.Sprint("IsGRPCBackend ", host, port), func(s *mesh.Snapshot) string {
				return fmt.Sprint(s.IsGRPCBackend(host, port))
			}, mesh.GRPCBackendTopic(host))
			add(fmt.Sprint("BackendTLS ", host, port), func(s *mesh.Snapshot) string {
				if found := s.BackendTLS(host, port); found != nil {
					return keys([]*mesh.BackendTLS{found})
				}
				return ""
			}, mesh.BackendTLSTopic(host))
		}
	}
	for _, domain := range []string{"", "a.com", "b.com", "c.com"} {
		var topics []mesh.Topic
		for _, listener := range []string{"a/gw/http", "a/gw/a/set/http"} {
			for _, of := range []string{"", "a.com", "b.com"} {
				topics = append(topics, mesh.AttachedRoutesTopic(listener+of, domain))
			}
		}
		add("RoutesHost "+domain, func(s *mesh.Snapshot) string {
			found := false
			s.RoutedHosts(func(host string) { found = found || host == cmp.Or(domain, "*") })
			if host, ok := mesh.HostOf("mesh", topics[0]); !ok || found != s.RoutesHost(host) {
				return "two answers"
			}
			return fmt.Sprint(found)
		}, topics...)
	}
	for _, set := range []string{"", "a/set"} {
		for _, domain := range []string{"", "a.com", "b.com"} {
			owner := &mesh.GatewayListeners{Spec: &configv1.GatewayListeners{Gateway: "a/gw", ListenerSet: set}}
			listener := owner.Reference("http" + domain)
			add("AttachedDomains "+listener, func(s *mesh.Snapshot) string { return fmt.Sprintf("%q", s.AttachedDomains(listener)) },
				mesh.AttachedDomainsTopic(listener))
			for _, d := range []string{domain, "c.com"} {
				add("AttachedRoutes "+listener+" "+d, func(s *mesh.Snapshot) string { return keys(s.AttachedRoutes(listener, d)) },
					mesh.AttachedRoutesTopic(listener, d))
			}
		}
	}
	return all
}

// keys lists the keys of objects with their contents.
func keys[T any](list []T) string {
	var out []string
	for _, v := range list {
		switch o := any(v).(type) {
		case *mesh.GatewayListeners:
			out = append(out, o.Key.String()+o.Created.String()+text(o.Spec))
		case *mesh.AttachedRoute:
			out = append(out, o.Key.String()+o.Created.String()+text(o.Spec))
		case *mesh.HostRoute:
			out = append(out, o.Key.String()+o.Created.String()+text(o.Spec))
		case *mesh.BackendTLS:
			out = append(out, o.Key.String()+o.Created.String()+text(o.Spec))
		}
	}
	return strings.Join(out, "\n")
}

// TestOneRouteTouchesItsHosts: a route that changes touches the topics of its own hosts alone, and the set of domains
// of its listener only if it is the first or the last of one.
func TestOneRouteTouchesItsHosts(t *testing.T) {
	route := func(name, domain, rank string) *configv1.Resource {
		return meshtest.GatewayAPI(mesh.KindHTTPRoute, "shop", name, &configv1.AttachedRoute{Rank: []byte(rank),
			Listeners: []*configv1.ListenerAttachment{{Gateway: "a/gw", Listener: "http", Hosts: []*configv1.AttachedHost{{Domain: domain}}}}})
	}
	const listener = "a/gw/http"
	state := meshtest.State(t, route("one", "a.com", ""), route("two", "b.com", ""))
	for _, step := range []struct {
		name   string
		upsert *configv1.Resource
		want   []mesh.Topic
	}{
		{"changed", route("one", "a.com", "x"), []mesh.Topic{mesh.AttachedRoutesTopic(listener, "a.com")}},
		{"one more of a domain", route("three", "b.com", ""), []mesh.Topic{mesh.AttachedRoutesTopic(listener, "b.com")}},
		{"one of two moves", route("three", "c.com", ""), []mesh.Topic{mesh.AttachedRoutesTopic(listener, "b.com"),
			mesh.AttachedRoutesTopic(listener, "c.com"), mesh.AttachedDomainsTopic(listener)}},
	} {
		next, change := state.Apply(nil, []*configv1.Resource{step.upsert}, nil)
		if len(change.Topics) != len(step.want) || slices.ContainsFunc(step.want, func(t mesh.Topic) bool { return !change.Topics.Has(t) }) {
			t.Errorf("%s: touched %v, want %v", step.name, change.Topics, step.want)
		}
		state = next
	}
}

// A resource whose body is of another kind is refused by name.
func TestGatewayAPIBodies(t *testing.T) {
	for _, kind := range []string{mesh.KindGatewayListeners, mesh.KindListenerSet, mesh.KindHTTPRoute, mesh.KindGRPCRoute, mesh.KindTLSRoute,
		mesh.KindTCPRoute, mesh.KindUDPRoute, mesh.KindBackendTLSPolicy} {
		_, err := mesh.FromResources([]*configv1.Resource{
			meshtest.Resource(kind, "a", "b", &configv1.Resource{Body: &configv1.Resource_Jwks{Jwks: &configv1.Jwks{}}})})
		if err == nil || !strings.Contains(err.Error(), kind+"/a/b") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
