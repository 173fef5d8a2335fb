package translate_test

import (
	"path/filepath"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

var virtualHostMesh = filepath.Join("testdata", "virtual-hosts", "mesh.yaml")

// Route configurations and virtual hosts of VHDS equal the reviewed ones.
func TestVHDSGoldens(t *testing.T) {
	for name, authorities := range map[string][]string{"listed": nil, "on-demand": {"reviews", "db-0.db:80", "nobody"}} {
		t.Run(name, func(t *testing.T) {
			w := load(t, virtualHostMesh)
			w.key.VirtualHosts, w.key.OnDemand = true, authorities != nil
			r := w.reader()
			var out []proto.Message
			build := func(translator plan.Translator, name string) {
				m, err := translator.Build(r, name)
				if err != nil || m == nil {
					t.Fatalf("%s: %v, %v", name, m, err)
				}
				out = append(out, m)
			}
			build(route.Translator{}, "80")
			hosts, err := plan.List(route.VirtualHosts{}, w.key, w.state)
			if err != nil {
				t.Fatal(err)
			}
			for _, authority := range authorities {
				hosts = append(hosts, "80/"+authority)
			}
			for _, name := range hosts {
				build(route.VirtualHosts{}, name)
			}
			testkit.Golden(t, filepath.Join(filepath.Dir(virtualHostMesh), name+".yaml"), render(t, out))
		})
	}
}

// Every form in which a client may write a host leads to it, before anything is known about the host.
func TestOnDemandHostsInEveryForm(t *testing.T) {
	w := load(t, virtualHostMesh)
	w.key.VirtualHosts, w.key.OnDemand = true, true
	const blocked = "502"
	for authority, want := range map[string]string{
		"reviews":                              "outbound|80||reviews.default.svc.cluster.local",
		"Reviews":                              "outbound|80||reviews.default.svc.cluster.local",
		"reviews:80":                           "outbound|80||reviews.default.svc.cluster.local",
		"reviews:1234":                         "outbound|80||reviews.default.svc.cluster.local",
		"reviews.default":                      "outbound|80||reviews.default.svc.cluster.local",
		"reviews.default.svc:80":               "outbound|80||reviews.default.svc.cluster.local",
		"reviews.default.svc.cluster.local":    "outbound|80||reviews.default.svc.cluster.local",
		"reviews.default.svc.cluster.local.":   "outbound|80||reviews.default.svc.cluster.local",
		"10.96.0.1":                            "outbound|80||reviews.default.svc.cluster.local",
		"10.96.0.1:80":                         "outbound|80||reviews.default.svc.cluster.local",
		"[fd00::1]":                            "outbound|80||reviews.default.svc.cluster.local",
		"[fd00:0::1]:80":                       "outbound|80||reviews.default.svc.cluster.local",
		"reviews.other":                        "outbound|80||reviews.other",
		"reviews.other.svc.cluster.local":      "outbound|80||reviews.default.svc.cluster.local", // by the VirtualService for its wildcard
		"10.96.0.2":                            "outbound|80||reviews.default.svc.cluster.local", // the older of two
		"db":                                   "outbound|80||db.default.svc.cluster.local",
		"db-0.db":                              "outbound|80||db.default.svc.cluster.local",
		"db-0.db.default.svc.cluster.local:80": "outbound|80||db.default.svc.cluster.local",
		"10.0.3.1":                             "outbound|80||db.default.svc.cluster.local", // a Pod of the headless service
		"www.example.com":                      "outbound|80||*.example.com",
		"a.b.example.com:8080":                 "outbound|80||*.example.com",
		"alias.example.org":                    "outbound|80||reviews.default.svc.cluster.local",
		"example.com":                          blocked,
		"nobody":                               blocked,
		"nobody.other.svc.cluster.local":       blocked,
		"10.0.3.2":                             blocked,
		"":                                     "nothing",
		"*":                                    "nothing",
		"*.example.com":                        "nothing",
		"a\x01b":                               "nothing",
		strings.Repeat("a", 256):               "nothing",
	} {
		got := "nothing"
		m, err := route.VirtualHosts{}.Build(w.reader(), "80/"+authority)
		if host, ok := m.(*routev3.VirtualHost); ok {
			if got = blocked; host.GetRoutes()[0].GetDirectResponse().GetStatus() != 502 {
				got = host.GetRoutes()[len(host.GetRoutes())-1].GetRoute().GetCluster()
			}
			if len(host.GetDomains()) != 1 || host.GetDomains()[0] != authority {
				t.Errorf("%q: the answer is for %q", authority, host.GetDomains())
			}
		}
		if got != want || err != nil {
			t.Errorf("%q leads to %s (%v), want %s", authority, got, err, want)
		}
	}
	for _, name := range []string{"80", "/reviews", "reviews", "0/reviews", "http_proxy/reviews",
		"reviews.default.svc.cluster.local:9080/reviews", "80/80/reviews"} {
		if m, err := (route.VirtualHosts{}).Build(w.reader(), name); m != nil || err != nil {
			t.Errorf("%q: %v, %v", name, m, err)
		}
	}
}
