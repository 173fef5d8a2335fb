package running

import (
	"fmt"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// TestCostIsBounded: neither one object nor many objects for one host make the analysis of the mesh long. Validation
// accepts each of these; without bounds they take from half a minute to days.
func TestCostIsBounded(t *testing.T) {
	names := func(n int, form string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf(form, i)
		}
		return out
	}
	var changes []normalise.Change
	add := func(kind, name string, body any) {
		k := object.Key{Group: kinds.GroupNetworking, Kind: kind, Namespace: "a", Name: name}
		changes = append(changes, normalise.Change{Key: k,
			Object: &object.Object{Key: k, Body: body, Created: time.Unix(int64(len(changes)), 0)}})
	}
	to := func(host, subset string) []*networking.HTTPRouteDestination {
		return []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host, Subset: subset}}}
	}
	for what, fill := range map[string]func(){
		"hosts at gateways": func() {
			for i := range 4 {
				add("VirtualService", fmt.Sprint(i), &networking.VirtualService{
					Hosts: names(3000, "h%d.example.com"), Gateways: names(3000, "g%d"), Http: []*networking.HTTPRoute{{Route: to("h.example.com", "")}},
				})
			}
		},
		"routes of many matches for hosts": func() {
			var routes []*networking.HTTPRoute
			for i := range 3000 {
				routes = append(routes, &networking.HTTPRoute{Route: to("h.example.com", ""), Match: []*networking.HTTPMatchRequest{{
					Gateways: []string{"mesh"}, Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprint("/", i)}},
				}}})
			}
			for i := range 8 {
				add("VirtualService", fmt.Sprint(i), &networking.VirtualService{Hosts: names(500, "h%d.example.com"), Gateways: names(4, "g%d"),
					Http: routes})
			}
		},
		"subsets of a host of many rules": func() {
			add("ServiceEntry", "h", &networking.ServiceEntry{Hosts: []string{"h.example.com"},
				Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}})
			var routes []*networking.HTTPRoute
			for i := range 3000 {
				add("DestinationRule", fmt.Sprint(i),
					&networking.DestinationRule{Host: "h.example.com", Subsets: []*networking.Subset{{Name: fmt.Sprint("s", i)}}})
				routes = append(routes, &networking.HTTPRoute{Route: to("h.example.com", fmt.Sprint("t", i))})
			}
			add("VirtualService", "v", &networking.VirtualService{Hosts: []string{"h.example.com"}, Http: routes})
		},
		"names that an entry is exported to": func() {
			add("ServiceEntry", "h", &networking.ServiceEntry{
				Hosts: []string{"h.example.com"}, ExportTo: names(3000, "n%d"),
				Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			})
			var routes []*networking.HTTPRoute
			for range 3000 {
				routes = append(routes, &networking.HTTPRoute{Route: to("h.example.com", "")})
			}
			add("VirtualService", "v", &networking.VirtualService{Hosts: []string{"h.example.com"}, ExportTo: names(3000, "m%d"), Http: routes})
		},
		"gateways of one port": func() {
			for i := range 1500 {
				add("Gateway", fmt.Sprint(i), &networking.Gateway{Selector: map[string]string{"gateway": fmt.Sprint(i)}, Servers: []*networking.Server{{
					Port: &networking.Port{Number: 443, Name: "https", Protocol: "HTTPS"}, Hosts: []string{"h.example.com"},
					Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE},
				}}})
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			changes = nil
			fill()
			testkit.Quick(t, 5*time.Second, func() time.Duration {
				m := New("")
				took := testkit.CPUTime(t, func() {
					m.Apply(changes)
					m.Analyze(0)
				})
				t.Logf("%s, %d findings", took, len(m.All()))
				return took
			})
		})
	}
}
