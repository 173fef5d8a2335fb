package status

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// dueRoute is a version of a route of Gateway edge.
func dueRoute(i, generation int, labels string) string {
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute,
 metadata: {name: r%d, namespace: shop, generation: %d, labels: {%s}},
 spec: {parentRefs: [{name: edge}], hostnames: [r%d-%d.example.com], rules: [{backendRefs: [{name: nowhere, port: 80}]}]}}`,
		i, generation, labels, i, generation)
}

// routesMesh is a mesh with a gateway that has acknowledged a number of routes.
func routesMesh(t testing.TB, routes int) *apiMesh {
	m := newAPIMesh(t, "")
	all := []string{shopNamespace, edgeGateway, fmt.Sprintf(edgePod, "edge-1", 1), fmt.Sprintf(edgeService, "{ip: 192.0.2.1}")}
	for i := range routes {
		all = append(all, dueRoute(i, 1, ""))
	}
	m.apply(all...)
	m.gateway("edge-1", 0)
	m.clock.Advance(settleTime)
	m.round()
	return m
}

// TestARoundLooksAtWhatHasChanged: its work does not depend on the number of routes.
func TestARoundLooksAtWhatHasChanged(t *testing.T) {
	m := routesMesh(t, 5000)
	const few = 2 // the Gateway and the route
	looks := func(what string, step func()) {
		t.Helper()
		before := m.findings.asked
		step()
		if n := m.findings.asked - before; n > few {
			t.Errorf("%s: a round has looked at %d objects", what, n)
		}
	}
	looks("nothing has changed", m.round)
	looks("a route has changed", func() { m.apply(dueRoute(7, 2, "")) })
	looks("the gateway acknowledges it", func() { m.gateway("edge-1", 0) })
	m.clock.Advance(settleTime)
	looks("its status is due", m.round)
	k := object.Key{Group: gatewayapi.Group, Kind: "HTTPRoute", Namespace: "shop", Name: "r7"}
	if st := m.all.statuses[k]; st == nil || st.Generation != 2 || st.Get(Programmed).Reason != reasonProgrammed {
		t.Errorf("the status of the changed route is %+v", st)
	}
	looks("a route is gone", func() { m.apply(dueRoute(8, 1, "gone: ''")) })
	if n := len(m.tracker.Rows()); n != 5000 {
		t.Errorf("%d rows, want one of the Gateway and 4,999 of routes", n)
	}
	m.findings.changed = []object.Key{k}
	looks("a finding about a route has come", m.round)
}

// TestARoundLooksAtPendingRoutesOnce: while no proxy is connected nobody acknowledges them, and no round looks again.
func TestARoundLooksAtPendingRoutesOnce(t *testing.T) {
	m := newAPIMesh(t, "")
	all := []string{shopNamespace, edgeGateway}
	for i := range 100 {
		all = append(all, dueRoute(i, 1, ""))
	}
	m.apply(all...)
	before := m.findings.asked
	m.apply(dueRoute(7, 2, ""))
	if n := m.findings.asked - before; n > 2 {
		t.Errorf("a round has looked at %d objects", n)
	}
	m.apply(fmt.Sprintf(edgePod, "edge-1", 1))
	m.gateway("edge-1", 0)
	for _, row := range m.tracker.Rows() {
		if c := row.Status.Get(Programmed); row.Key.Kind == "HTTPRoute" && c.Message != "1 of 1 proxies acknowledged" {
			t.Fatalf("%s: %s", row.Key, c.Message)
		}
	}
}

// TestAcknowledgedRoutesAreNotWrittenAgain: the status of a route says nothing about proxies.
func TestAcknowledgedRoutesAreNotWrittenAgain(t *testing.T) {
	m := newAPIMesh(t, "")
	m.apply(shopNamespace, edgeGateway, fmt.Sprintf(edgePod, "edge-1", 1), dueRoute(1, 1, ""))
	m.clock.Advance(settleTime)
	m.round()
	if m.all.puts != 1 {
		t.Fatalf("the status of a route is handed on %d times", m.all.puts)
	}
	m.gateway("edge-1", 0)
	for _, row := range m.tracker.Rows() {
		if row.Key.Kind == "HTTPRoute" && row.Status.Get(Programmed).Message != "1 of 1 proxies acknowledged" {
			t.Errorf("%+v", row.Status)
		}
	}
	if m.all.puts != 1 {
		t.Error("it is handed on again because a gateway has acknowledged it")
	}
	again := m.conditions("HTTPRoute", "r1")
	m.apply(dueRoute(1, 1, "gone: ''"))
	m.apply(strings.Replace(dueRoute(1, 1, ""), "name: r1,", "name: r1, uid: other,", 1))
	m.gateway("edge-1", 0)
	if m.all.puts != 2 || m.conditions("HTTPRoute", "r1") != again {
		t.Errorf("another route of its name: %d, %s", m.all.puts, m.conditions("HTTPRoute", "r1"))
	}
}

// refusing is a source of objects that it refuses.
type refusing struct {
	source.Source
	refused map[object.Key]source.Refused
}

func (r *refusing) Name() string              { return "test" }
func (r *refusing) Refused() []source.Refused { return slices.Collect(maps.Values(r.refused)) }

// TestRoundsMissNothing: after any change the statuses are those of a tracker that looks at everything in each round.
func TestRoundsMissNothing(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			m := newAPIMesh(t, "")
			refuses := &refusing{refused: map[object.Key]source.Refused{}}
			var overridden [][]*object.Object
			cfg := m.tracker.cfg
			missing := map[object.Key]bool{}
			cfg.Keys = func(k object.Key) ([]string, bool) { return []string{"no keys"}, missing[k] }
			cfg.Sources, cfg.Overridden = []source.Source{refuses}, func() [][]*object.Object { return overridden }
			m.findings.of = map[object.Key][]finding.Finding{}
			whole := &foundFake{of: m.findings.of}
			all, few := &apiSink{statuses: map[object.Key]*Status{}}, &apiSink{statuses: map[object.Key]*Status{}}
			m.tracker = NewTracker(cfg)
			cfg.Findings, cfg.Sinks, cfg.Few = whole, map[string]Sink{"test": all}, map[string]Sink{"test": few}
			m.whole = NewTracker(cfg)
			steps := dueSteps(m, r, refuses, &overridden)
			authentication := object.Key{Group: kinds.GroupSecurity, Kind: "RequestAuthentication", Namespace: "shop", Name: "tokens"}
			m.submit([]normalise.Change{{Key: authentication, Object: &object.Object{Key: authentication, Source: "test", Generation: 1,
				Body: &security.RequestAuthentication{}}}}, normalise.Judged{})
			steps["keys"] = func() { missing[authentication] = r.IntN(2) > 0 }
			m.apply(shopNamespace, edgeGateway, fmt.Sprintf(edgePod, "edge-1", 1))
			for range 60 {
				name := slices.Sorted(maps.Keys(steps))[r.IntN(len(steps))]
				steps[name]()
				m.round()
				m.t.Log(name)
				if got, want := m.tracker.Rows(), m.whole.Rows(); !reflect.DeepEqual(got, want) {
					t.Fatalf("rows differ:\n%s\nwant\n%s", rowsText(got), rowsText(want))
				}
				if m.tracker.Awaited() != m.whole.Awaited() {
					t.Fatalf("awaited: %v", m.tracker.Awaited())
				}
				if !reflect.DeepEqual(m.all.written(), all.written()) || !reflect.DeepEqual(m.few.written(), few.written()) {
					t.Fatal("the sinks have other statuses")
				}
			}
		})
	}
}

// dueSteps are what may happen in a mesh, by name.
func dueSteps(m *apiMesh, r *rand.Rand, refuses *refusing, overridden *[][]*object.Object) map[string]func() {
	generation := 1
	next := func() int { generation++; return generation }
	key := func() object.Key {
		return object.Key{Group: gatewayapi.Group, Kind: "HTTPRoute", Namespace: "shop", Name: fmt.Sprint("r", r.IntN(5))}
	}
	dr := func() *object.Object {
		o := rule("web")
		o.Key.Name, o.Source, o.Generation = fmt.Sprint("rule-", r.IntN(3)), "test", int64(next())
		return o
	}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	sequence := func() uint64 { snapshot, _ := m.log.Current(); return snapshot.Sequence() }
	return map[string]func(){
		"route": func() {
			m.apply(dueRoute(r.IntN(5), next(), pick("", "", "gone: ''", "istio.io/rev: canary", "istio.io/rev: stable")))
		},
		"gateway": func() {
			m.apply(pick(edgeGateway, `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway,
 metadata: {name: edge, namespace: shop, labels: {gone: ''}}}`))
		},
		"namespace": func() {
			m.apply(pick(shopNamespace, "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: stable}}}"))
		},
		"service": func() { m.apply(fmt.Sprintf(edgeService, pick("", "{ip: 192.0.2.1}"))) },
		"pods":    func() { m.apply(fmt.Sprintf(edgePod, pick("edge-1", "edge-2"), 1+r.IntN(2))) },
		"backend": func() {
			m.apply("{apiVersion: v1, kind: Service, metadata: {name: nowhere, namespace: shop, labels: {" + pick("", "gone: ''") + "}}}")
		},
		"tags": func() { m.owner.SetTags(map[string]string{"stable": pick("default", "canary")}) },
		"ack":  func() { m.gateway(pick("edge-1", "edge-2"), uint64(r.IntN(min(3, int(sequence()))))) },
		"reject": func() {
			m.gateway("edge-1", 1, rejects(pick("cluster.v3.Cluster", "route.v3.RouteConfiguration"), sequence(), "no",
				"outbound|80||web.shop.svc.cluster.local"))
		},
		"proxy gone": func() {
			m.reports.Apply(&configv1.ReportRequest{Disconnected: []string{"router~10.0.0.1~edge-2.shop~d"}}, false)
		},
		"rule": func() {
			o := dr()
			c := normalise.Change{Key: o.Key}
			if r.IntN(3) > 0 {
				c.Object = o
			}
			m.submit([]normalise.Change{c}, normalise.Judged{})
		},
		"finding": func() {
			k := key()
			set(m.findings.of, k, []finding.Finding{{Key: k, Code: "FL0001"}}, r.IntN(2) > 0)
			m.findings.changed = append(m.findings.changed, k)
		},
		"refused": func() {
			k := key()
			set(refuses.refused, k, source.Refused{Key: k, Generation: int64(next()), Problems: object.Problems{{Field: "spec", Reason: "no"}}},
				r.IntN(2) > 0)
		},
		"overridden": func() {
			o := dr()
			other := *o
			other.Source = pick("test", "files")
			*overridden = [][]*object.Object{{o, &other}}
		},
		"time": func() { m.clock.Advance(settleTime) },
	}
}

func rowsText(rows []*Row) (out string) {
	for _, row := range rows {
		out += fmt.Sprintf("%s %s %+v\n", row.Source, row.Key, *row.Status)
	}
	return out
}

// BenchmarkRoundOf5000 is a round after a change of one of 5,000 routes.
func BenchmarkRoundOf5000(b *testing.B) {
	m := routesMesh(b, 5000)
	b.ReportAllocs()
	snapshot, _ := m.log.Current()
	k := object.Key{Group: gatewayapi.Group, Kind: "HTTPRoute", Namespace: "shop", Name: "r7"}
	for b.Loop() {
		o := *m.tracker.entries[k].object
		o.Generation++
		m.tracker.Submit([]normalise.Change{{Key: k, Object: &o}}, normalise.Judged{})
		m.tracker.round(snapshot)
	}
}
