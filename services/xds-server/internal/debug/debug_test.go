package debug_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/ops"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/debug"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

const (
	reviews = "reviews.shop.svc.cluster.local"
	ratings = "ratings.shop.svc.cluster.local"
	nodeID  = "sidecar~10.1.0.9~web-0.shop~shop.svc.cluster.local"
	cluster = "outbound|9080||" + reviews
	subset  = "outbound|9080|v1|" + reviews
)

// fleet has one proxy of a class.
type fleet struct{ status *configv1.ProxyStatus }

func (f fleet) Statuses() []*configv1.ProxyStatus { return []*configv1.ProxyStatus{f.status} }
func (f fleet) Served() *configv1.Revision        { return &configv1.Revision{Sequence: 7} }

func (fleet) Refusals() []*configv1.Refusal {
	return []*configv1.Refusal{{NodeId: "sidecar~10.0.0.9~greedy.default~x", Budget: "names", Reason: "too much"}}
}

func (fleet) Trust() acks.State {
	return acks.State{Epoch: 1, Generation: 7, Agents: 9, Behind: 1, BehindFirst: []string{nodeID}}
}

// Changed implements plan.Watcher.
func (f fleet) Changed(_, _ plan.Changes) {}

type mux struct{ *http.ServeMux }

func (m mux) Debug(path, _ string, h http.Handler) { m.Handle(path, h) }

// pages serves the debug pages of an engine with all translators and one sidecar, web-0.shop.
type pages struct {
	t      *testing.T
	mux    *http.ServeMux
	status *configv1.ProxyStatus
	istio  *debug.Istio
}

func newPages(t *testing.T, change func(*class.Key), resources ...*configv1.Resource) *pages {
	t.Helper()
	engine, err := plan.NewEngine(plan.Config{
		Translators: translate.All(), Store: store.New(), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	state, applied := mesh.Empty().Apply(&configv1.Revision{Epoch: "test", Sequence: 7}, resources, nil)
	if len(applied.Rejected) > 0 {
		t.Fatal(applied.Rejected)
	}
	engine.Apply(state, applied, nil)
	key := &class.Key{
		Type: class.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "web"}, Interception: class.Redirect,
		TrustDomain: "cluster.local", DNSDomain: "shop.svc.cluster.local",
	}
	if change != nil {
		change(key)
	}
	key = key.WithSidecar(state, key.Labels)
	p := &pages{t: t, mux: http.NewServeMux(), status: &configv1.ProxyStatus{
		NodeId: nodeID, Namespace: "shop", Workload: "web-0", XdsServer: "xds-server-0",
		Types: []*configv1.ProxyTypeStatus{
			{TypeUrl: resource.ClusterType, Sent: &configv1.Revision{Sequence: 6}, Acked: &configv1.Revision{Sequence: 5}, Pending: 2},
		},
	}}
	f := fleet{p.status}
	c := engine.Acquire(key, f)
	t.Cleanup(func() { engine.Release(c, f) })
	c.Plan(f, resource.ClusterType, true, nil)
	c.Plan(f, resource.ListenerType, true, nil)
	c.Plan(f, resource.EndpointType, false, []string{cluster, subset})
	c.Plan(f, resource.RouteType, false, []string{"9080", "15080"})
	c.Plan(f, resource.VirtualHostType, true, nil)
	c.Plan(f, ndsv1.NameTableType, true, nil)
	p.status.Class = c.ID()
	debug.Register(mux{p.mux}, ops.JSON, f, engine)
	p.istio = debug.NewIstio(f, engine)
	return p
}

// get reads a page into out. It returns the error that the page answers with.
func (p *pages) get(path string, query url.Values, out any) string {
	p.t.Helper()
	w := httptest.NewRecorder()
	p.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path+"?"+query.Encode(), nil))
	if w.Code != http.StatusOK {
		var failure struct{ Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &failure); err != nil || failure.Error == "" {
			p.t.Fatalf("%s: status %d, %s", path, w.Code, w.Body)
		}
		return failure.Error
	}
	if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
		p.t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return ""
}

type object struct {
	Kind, Namespace, Name, Source, Location, Detail string
	Generation                                      int64
}

func (o object) id() string { return o.Kind + " " + o.Namespace + "/" + o.Name }

type answer struct {
	Proxy, Type, Name, RouteConfiguration, Version, Problem, Sidecar string
	Revision, Sent, Acked                                            uint64
	Candidates                                                       []struct{ Type, Name string }
	Workload                                                         *object
	MadeFrom, PassedOver                                             []object
	NotFound, LookedUp                                               []string
}

func (a *answer) from(id string) *object {
	for i := range a.MadeFrom {
		if a.MadeFrom[i].id() == id {
			return &a.MadeFrom[i]
		}
	}
	return nil
}

func (a *answer) candidates() []string {
	var list []string
	for _, c := range a.Candidates {
		list = append(list, c.Type+" "+c.Name)
	}
	return list
}

func (p *pages) why(name, kind string) *answer {
	p.t.Helper()
	a := &answer{}
	if failure := p.get("/debug/why", url.Values{"proxy": {"web-0.shop"}, "name": {name}, "type": {kind}}, a); failure != "" {
		p.t.Fatalf("why %s: %s", name, failure)
	}
	return a
}

// assertLine asserts that some line contains the text.
func assertLine(t *testing.T, lines []string, text string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, text) }) {
		t.Errorf("no line says %q: %q", text, lines)
	}
}

func source(kind, name string, generation int64) *configv1.SourceRef {
	return &configv1.SourceRef{
		Source: "file", Kind: kind, Namespace: "shop", Name: name, Generation: generation, Location: "mesh.yaml:" + name,
	}
}

func from(s *configv1.SourceRef) func(*configv1.IstioConfig) {
	return func(c *configv1.IstioConfig) { c.Source = s }
}

// shop has two services, rules for reviews, and objects about reviews that have no effect.
func shop() []*configv1.Resource {
	service := func(s *configv1.SourceRef) func(*configv1.Service) {
		return func(svc *configv1.Service) { svc.Source = s }
	}
	to := func(host, subset string) []*networking.HTTPRoute {
		return []*networking.HTTPRoute{
			{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host, Subset: subset}}}}}
	}
	rule := meshtest.DestinationRule(reviews, time.Second)
	rule.Subsets = []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}}
	second := &networking.DestinationRule{Host: reviews,
		Subsets: []*networking.Subset{{Name: "v2", Labels: map[string]string{"version": "v2"}}}}
	selective := meshtest.DestinationRule(reviews, 2*time.Second)
	selective.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "other"}}
	return []*configv1.Resource{
		meshtest.Service("shop", reviews, 9080, service(source("Service", "reviews", 3))),
		meshtest.Endpoints("shop", reviews, 9080, "10.1.0.1", "10.1.0.2"),
		meshtest.Service("shop", ratings, 9080, service(source("Service", "ratings", 1))),
		meshtest.Workload("shop", "web-0", "10.1.0.9", func(w *configv1.Workload) { w.Source = source("Pod", "web-0", 2) }),
		meshtest.Config(mesh.KindVirtualService, "shop", "reviews", &networking.VirtualService{
			Hosts: []string{reviews}, Gateways: []string{"mesh"}, Http: to(reviews, "v1"),
		}, from(source("VirtualService", "reviews", 4))),
		meshtest.Config(mesh.KindDestinationRule, "shop", "reviews", rule, from(source("DestinationRule", "reviews", 5))),
		meshtest.Config(mesh.KindDestinationRule, "shop", "reviews-more", second,
			from(source("DestinationRule", "reviews-more", 6)), meshtest.Aged(time.Hour)),
		meshtest.Config(mesh.KindDestinationRule, "shop", "selective", selective),
		meshtest.Config(mesh.KindDestinationRule, "elsewhere", "reviews", meshtest.DestinationRule(reviews, time.Minute)),
		meshtest.Config(mesh.KindDestinationRule, "istio-system", "hidden", meshtest.DestinationRule(reviews, time.Minute),
			meshtest.ExportedTo("istio-system")),
		meshtest.Config(mesh.KindVirtualService, "elsewhere", "private", &networking.VirtualService{
			Hosts: []string{reviews}, Gateways: []string{"mesh"}, Http: to(ratings, ""),
		}, meshtest.ExportedTo("elsewhere")),
		meshtest.Config(mesh.KindGateway, "shop", "front", &networking.Gateway{}),
		meshtest.Config(mesh.KindVirtualService, "shop", "ingress", &networking.VirtualService{
			Hosts: []string{reviews}, Gateways: []string{"shop/front"}, Http: to(ratings, ""),
		}),
	}
}

func TestWhyCluster(t *testing.T) {
	p := newPages(t, nil, shop()...)
	a := p.why(cluster, "")
	if a.Proxy != nodeID || a.Type != "clusters" || a.Name != cluster || a.Version == "" || a.Problem != "" || a.Revision != 7 ||
		a.Sent != 6 || a.Acked != 5 {
		t.Errorf("answer %+v", a)
	}
	if a.Workload == nil || a.Workload.id() != "Pod shop/web-0" || a.Workload.Generation != 2 {
		t.Errorf("workload %+v", a.Workload)
	}
	for id, generation := range map[string]int64{"Service shop/reviews": 3, "DestinationRule shop/reviews": 5,
		"DestinationRule shop/reviews-more": 6} {
		if o := a.from(id); o == nil || o.Generation != generation || o.Source != "file" || o.Location != "mesh.yaml:"+o.Name {
			t.Errorf("%s: %+v of %+v", id, o, a.MadeFrom)
		}
	}
	if a.from("Service shop/ratings") != nil {
		t.Errorf("made from a service that it has nothing to do with: %+v", a.MadeFrom)
	}
	assertLine(t, a.NotFound, "no MeshConfig: all mesh-wide settings are defaults")
	reasons := map[string]string{}
	for _, o := range a.PassedOver {
		reasons[o.id()] = o.Detail
	}
	for id, reason := range map[string]string{
		"DestinationRule elsewhere/reviews":   "are looked up in namespaces shop, istio-system",
		"DestinationRule shop/selective":      "workload selector",
		"DestinationRule istio-system/hidden": "exported to istio-system",
	} {
		if !strings.Contains(reasons[id], reason) {
			t.Errorf("%s was passed over because %q, want %q", id, reasons[id], reason)
		}
	}
	if len(a.LookedUp) == 0 || !slices.Contains(a.LookedUp, "DestinationRule for host "+reviews) {
		t.Errorf("looked up %q", a.LookedUp)
	}
}

func TestWhyNothingFound(t *testing.T) {
	p := newPages(t, nil, shop()...)
	a := p.why("outbound|9080||"+ratings, "clusters")
	if a.from("Service shop/ratings") == nil {
		t.Errorf("made from %+v", a.MadeFrom)
	}
	assertLine(t, a.NotFound, "no DestinationRule for host "+ratings+" in namespaces shop, istio-system")
	a = p.why("outbound|9080||"+ratings, "endpoints")
	assertLine(t, a.NotFound, "no endpoints of "+ratings+" port 9080")
}

func TestWhyEndpoints(t *testing.T) {
	a := newPages(t, nil, shop()...).why(cluster, "endpoints")
	if o := a.from("EndpointSet shop/" + reviews + ":9080"); o == nil || o.Detail != "2 endpoints of 1 cluster" {
		t.Errorf("made from %+v", a.MadeFrom)
	}
}

// TestWhyVirtualHost does the same for a virtual host in a route configuration and for one that is a resource.
func TestWhyVirtualHost(t *testing.T) {
	for name, separate := range map[string]bool{"inline": false, "separate": true} {
		t.Run(name, func(t *testing.T) {
			p := newPages(t, func(k *class.Key) { k.VirtualHosts = separate }, shop()...)
			a := p.why("9080/"+reviews+":9080", "")
			if a.Type != "virtualhosts" || a.Problem != "" || (a.RouteConfiguration == "9080") == separate {
				t.Errorf("answer %+v", a)
			}
			for id, generation := range map[string]int64{"Service shop/reviews": 3, "VirtualService shop/reviews": 4} {
				if o := a.from(id); o == nil || o.Generation != generation {
					t.Errorf("%s: %+v of %+v", id, o, a.MadeFrom)
				}
			}
			if a.from("Service shop/ratings") != nil {
				t.Errorf("made from a service that it has nothing to do with: %+v", a.MadeFrom)
			}
			reasons := map[string]string{}
			for _, o := range a.PassedOver {
				reasons[o.id()] = o.Detail
			}
			if !strings.Contains(reasons["VirtualService elsewhere/private"], "exported to elsewhere") ||
				!strings.Contains(reasons["VirtualService shop/ingress"], "bound to gateway shop/front") {
				t.Errorf("passed over %+v", a.PassedOver)
			}
			a = p.why("9080/"+ratings+":9080", "")
			assertLine(t, a.NotFound, "no VirtualService for host "+ratings+", bound to the mesh")
		})
	}
}

func TestFind(t *testing.T) {
	p := newPages(t, nil, shop()...)
	host := "virtualhosts 9080/" + reviews + ":9080"
	for name, tc := range map[string]struct {
		text, kind string
		want       []string
	}{
		"host": {reviews, "", []string{host, "clusters " + cluster, "clusters " + subset, "endpoints " + cluster, "endpoints " + subset}},
		"host, port": {reviews + ":9080", "", []string{host, "clusters " + cluster, "clusters " + subset, "endpoints " + cluster,
			"endpoints " + subset}},
		"short":        {"reviews", "clusters", []string{"clusters " + cluster, "clusters " + subset}},
		"with dot":     {"reviews.shop", "cluster", []string{"clusters " + cluster, "clusters " + subset}},
		"message name": {"reviews", "Cluster", []string{"clusters " + cluster, "clusters " + subset}},
		"unique":       {"reviews:9080", "virtualhosts", []string{host}},
		"cluster":      {cluster, "", []string{"clusters " + cluster}},
		"port":         {"9080", "routes", []string{"routes 9080"}},
		"prefix":       {"ratings.shop.svc", "vir", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &answer{}
			failure := p.get("/debug/why", url.Values{"proxy": {nodeID}, "name": {tc.text}, "type": {tc.kind}}, a)
			got := a.candidates()
			if len(got) == 0 && failure == "" {
				got = []string{a.Type + " " + a.Name}
			}
			for _, want := range tc.want {
				if !slices.Contains(got, want) {
					t.Errorf("%q is not among %q; %s", want, got, failure)
				}
			}
			if len(got) < len(tc.want) || tc.want == nil && failure == "" {
				t.Errorf("found %q", got)
			}
		})
	}
}

func TestWhyFailures(t *testing.T) {
	p := newPages(t, nil, shop()...)
	for name, tc := range map[string]struct{ proxy, name, kind, want string }{
		"no proxy":    {"nobody", reviews, "", "no proxy"},
		"no name":     {nodeID, "", "", "name the resource"},
		"no type":     {nodeID, reviews, "nonsense", "choose one of virtualhosts, clusters"},
		"no resource": {nodeID, "nonsense", "", "no resource"},
	} {
		t.Run(name, func(t *testing.T) {
			failure := p.get("/debug/why", url.Values{"proxy": {tc.proxy}, "name": {tc.name}, "type": {tc.kind}}, &answer{})
			if !strings.Contains(failure, tc.want) {
				t.Errorf("%q does not say %q", failure, tc.want)
			}
		})
	}
	t.Run("not there", func(t *testing.T) {
		a := p.why("outbound|1||nowhere.shop.svc.cluster.local", "clusters")
		if a.Problem == "" || a.Version != "" {
			t.Errorf("answer %+v", a)
		}
		assertLine(t, a.NotFound, "no Service with host nowhere.shop.svc.cluster.local, visible to namespace shop")
	})
	t.Run("not asked for", func(t *testing.T) {
		a := p.why("outbound|9080|v2|"+reviews, "endpoints")
		if a.Version == "" && !strings.Contains(a.Problem, "has asked for it") {
			t.Errorf("answer %+v", a)
		}
	})
	t.Run("rejected", func(t *testing.T) {
		p.status.Types[0].Rejection = &configv1.Rejection{Message: "bad cluster", ResourceNames: []string{cluster}}
		if a := p.why(cluster, "clusters"); !strings.Contains(a.Problem, "bad cluster") {
			t.Errorf("problem %q", a.Problem)
		}
		if a := p.why(subset, "clusters"); a.Problem != "" {
			t.Errorf("another resource was blamed: %q", a.Problem)
		}
	})
}

// TestWhySidecar: the answer names the services that the Sidecar hides from a proxy.
func TestWhySidecar(t *testing.T) {
	sidecar := meshtest.Config(mesh.KindSidecar, "shop", "lean", &networking.Sidecar{
		Egress: []*networking.IstioEgressListener{{Hosts: []string{"./" + ratings}}},
	}, from(source("Sidecar", "lean", 9)))
	p := newPages(t, nil, append(shop(), sidecar)...)
	a := p.why(cluster, "clusters")
	if a.Sidecar != "shop/lean" || a.Problem == "" || !slices.ContainsFunc(a.PassedOver, func(o object) bool {
		return o.id() == "Service shop/reviews" && strings.Contains(o.Detail, "Sidecar shop/lean does not import it")
	}) {
		t.Errorf("answer %+v", a)
	}
	if o := p.why("outbound|9080||"+ratings, "clusters").from("Sidecar shop/lean"); o == nil || o.Generation != 9 {
		t.Errorf("the Sidecar has no part in the cluster: %+v", o)
	}
}

func TestResources(t *testing.T) {
	p := newPages(t, func(k *class.Key) { k.VirtualHosts = true }, shop()...)
	type served struct{ Name, Version string }
	for kind, want := range map[string]string{
		"clusters": cluster, "virtualhosts": "9080/" + reviews + ":9080", resource.VirtualHostType: "9080/" + reviews + ":9080", "routes": "9080",
		"nametables": nametable.Name, "NameTable": nametable.Name,
	} {
		t.Run(kind, func(t *testing.T) {
			found := map[string][]served{}
			if failure := p.get("/debug/resources", url.Values{"proxy": {nodeID}, "type": {kind}, "name": {want}}, &found); failure != "" {
				t.Fatal(failure)
			}
			if len(found) != 1 {
				t.Errorf("found %v", found)
			}
			for _, list := range found {
				if len(list) != 1 || list[0].Name != want || list[0].Version == "" {
					t.Errorf("found %v", list)
				}
			}
		})
	}
	for spelling, field := range map[string]string{"": "edsClusterConfig", "proto": "eds_cluster_config"} {
		found := map[string][]struct{ Resource map[string]any }{}
		if failure := p.get("/debug/resources", url.Values{"proxy": {nodeID}, "type": {"clusters"}, "name": {cluster}, "spelling": {spelling}},
			&found); failure != "" {
			t.Fatal(failure)
		}
		for _, list := range found {
			if len(list) != 1 || list[0].Resource[field] == nil {
				t.Errorf("spelling %q: %v", spelling, list)
			}
		}
	}
	if failure := p.get("/debug/resources", url.Values{"proxy": {nodeID}, "type": {"nonsense"}}, nil); !strings.Contains(failure,
		"choose one of") {
		t.Errorf("an unknown type: %q", failure)
	}
}

// TestWhyNameTable: the answer lists the services in the name table.
func TestWhyNameTable(t *testing.T) {
	p := newPages(t, nil, shop()...)
	a := p.why(nametable.Name, "")
	if a.Type != "nametables" || a.Version == "" || a.Problem != "" {
		t.Errorf("answer %+v", a)
	}
	if o := a.from("Service shop/reviews"); o == nil || o.Generation != 3 {
		t.Errorf("no reviews among %+v", a.MadeFrom)
	}
	if a.from("VirtualService shop/reviews") != nil || a.from("DestinationRule shop/reviews") != nil {
		t.Errorf("made from %+v", a.MadeFrom)
	}
}

func TestProxies(t *testing.T) {
	p := newPages(t, nil, shop()...)
	var found struct {
		Revision struct{ Sequence string }
		Proxies  []struct {
			NodeID string
			Types  []struct{ Pending int }
		}
	}
	if failure := p.get("/debug/proxies", url.Values{"proxy": {"web-0.shop"}}, &found); failure != "" {
		t.Fatal(failure)
	}
	if found.Revision.Sequence != "7" || len(found.Proxies) != 1 || found.Proxies[0].NodeID != nodeID ||
		found.Proxies[0].Types[0].Pending != 2 {
		t.Errorf("found %+v", found)
	}
	if failure := p.get("/debug/proxies", url.Values{"proxy": {"nobody"}}, nil); !strings.Contains(failure, "no proxy") {
		t.Errorf("an unknown proxy: %q", failure)
	}
}

func TestTrust(t *testing.T) {
	var got acks.State
	if failure := newPages(t, nil).get("/debug/trust", nil, &got); failure != "" {
		t.Fatal(failure)
	}
	if got.Generation != 7 || got.Agents != 9 || got.Behind != 1 || !slices.Equal(got.BehindFirst, []string{nodeID}) {
		t.Errorf("got %+v", got)
	}
}
