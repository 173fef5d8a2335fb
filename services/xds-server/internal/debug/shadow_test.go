package debug_test

import (
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// shadowed is shop with younger objects for reviews that have no effect because of older ones; one of them routes
// ratings as well.
func shadowed() []*configv1.Resource {
	to := func(hosts ...string) *networking.VirtualService {
		return &networking.VirtualService{Hosts: hosts, Gateways: []string{"mesh"}, Http: []*networking.HTTPRoute{{
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: ratings}}},
		}}}
	}
	opaque := &networking.VirtualService{Hosts: []string{reviews}, Gateways: []string{"mesh"}, Tcp: []*networking.TCPRoute{{
		Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: ratings}}},
	}}}
	rule := meshtest.DestinationRule(reviews, time.Minute)
	rule.Subsets = []*networking.Subset{{Name: "v1"}}
	return append(shop(),
		meshtest.Config(mesh.KindVirtualService, "shop", "younger", to(reviews, ratings), meshtest.Aged(time.Hour)),
		meshtest.Config(mesh.KindVirtualService, "shop", "opaque", opaque, meshtest.Aged(time.Hour)),
		meshtest.Config(mesh.KindVirtualService, "shop", "wide", to("*.shop.svc.cluster.local"), meshtest.Aged(time.Hour)),
		meshtest.Config(mesh.KindDestinationRule, "shop", "younger", rule, meshtest.Aged(2*time.Hour)),
	)
}

func (a *answer) passed(id string) string {
	for _, o := range a.PassedOver {
		if o.id() == id {
			return o.Detail
		}
	}
	return ""
}

// TestWhyShadowed: an object without effect because of an older one is passed over, with the reason, and is not among
// those that the resource was made from. This holds for virtual hosts that are resources and for those in route
// configurations.
func TestWhyShadowed(t *testing.T) {
	for name, change := range map[string]func(*class.Key){"tables": nil, "virtual hosts": func(k *class.Key) { k.VirtualHosts = true }} {
		t.Run(name, func(t *testing.T) {
			p := newPages(t, change, shadowed()...)
			a := p.why("9080/"+reviews+":9080", "")
			if a.from("VirtualService shop/reviews") == nil {
				t.Errorf("made from %+v", a.MadeFrom)
			}
			for id, reason := range map[string]string{
				"VirtualService shop/younger": "VirtualService shop/reviews is older",
				"VirtualService shop/opaque":  "", // older ones take precedence, whatever it is about
				"VirtualService shop/wide":    "VirtualService shop/reviews is for a more specific host",
			} {
				if got := a.passed(id); a.from(id) != nil || got == "" || !strings.Contains(got, reason) {
					t.Errorf("%s: passed over because %q, want %q; made from %+v", id, got, reason, a.MadeFrom)
				}
			}
			a = p.why("9080/"+ratings+":9080", "")
			if a.from("VirtualService shop/younger") == nil || a.passed("VirtualService shop/younger") != "" ||
				a.from("VirtualService shop/wide") != nil {
				t.Errorf("what routes another host: made from %+v, passed over %+v", a.MadeFrom, a.PassedOver)
			}
			a = p.why(cluster, "")
			if a.from("DestinationRule shop/younger") != nil ||
				!strings.Contains(a.passed("DestinationRule shop/younger"), "older rules for the host") ||
				a.from("DestinationRule shop/reviews-more") == nil {
				t.Errorf("rules: made from %+v, passed over %+v", a.MadeFrom, a.PassedOver)
			}
		})
	}
}

// TestWhyShadowedAtGateway: of several routes for a host that match everything, the oldest has an effect.
func TestWhyShadowedAtGateway(t *testing.T) {
	to := func(uri *networking.StringMatch) *networking.VirtualService {
		r := &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: reviews}}}}
		if uri != nil {
			r.Match = []*networking.HTTPMatchRequest{{Uri: uri}}
		}
		return &networking.VirtualService{Hosts: []string{"a.example.com"}, Gateways: []string{"shop/edge"}, Http: []*networking.HTTPRoute{r}}
	}
	elsewhere := to(nil)
	elsewhere.Hosts = []string{"b.example.org"}
	p := newPages(t, func(k *class.Key) { k.Type = class.Router }, append(shop(),
		meshtest.Config(mesh.KindGateway, "shop", "edge", &networking.Gateway{Servers: []*networking.Server{{
			Port: &networking.Port{Number: 80, Name: "http", Protocol: "HTTP"}, Hosts: []string{"*.example.com"},
		}}}),
		meshtest.Config(mesh.KindVirtualService, "shop", "first", to(nil)),
		meshtest.Config(mesh.KindVirtualService, "shop", "second", to(nil), meshtest.Aged(time.Hour)),
		meshtest.Config(mesh.KindVirtualService, "shop", "third",
			to(&networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: "/b"}}), meshtest.Aged(2*time.Hour)),
		meshtest.Config(mesh.KindVirtualService, "shop", "elsewhere", elsewhere),
	)...)
	a := p.why("http.80", "routes")
	for _, id := range []string{"VirtualService shop/first", "VirtualService shop/third"} {
		if a.from(id) == nil || a.passed(id) != "" {
			t.Errorf("%s has no part: made from %+v, passed over %+v", id, a.MadeFrom, a.PassedOver)
		}
	}
	for id, reason := range map[string]string{
		"VirtualService shop/second": "VirtualService shop/first is older or, at the same age, first by name, and of several routes for a " +
			"host that match everything the first counts",
		"VirtualService shop/elsewhere": "no host in common with the servers",
	} {
		if a.from(id) != nil || !strings.Contains(a.passed(id), reason) {
			t.Errorf("%s: passed over because %q; made from %+v", id, a.passed(id), a.MadeFrom)
		}
	}
}
