package nametable_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

// counting counts builds.
type counting struct {
	nametable.Translator
	builds *atomic.Int64
}

func (c counting) Build(r *input.Reader, name string) (proto.Message, error) {
	c.builds.Add(1)
	return c.Translator.Build(r, name)
}

// fixture is an engine with name tables alone.
type fixture struct {
	t testing.TB
	*plan.Engine
	builds   atomic.Int64
	state    *mesh.Snapshot
	sequence uint64
}

func newEngine(t testing.TB, resources ...*configv1.Resource) *fixture {
	t.Helper()
	e := &fixture{t: t, state: mesh.Empty()}
	var err error
	e.Engine, err = plan.NewEngine(plan.Config{
		Translators: []plan.Translator{counting{builds: &e.builds}}, Store: store.New(), Log: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	e.change(resources, nil)
	return e
}

// change applies a revision and returns the number of builds.
func (e *fixture) change(upserts, removed []*configv1.Resource) int64 {
	e.t.Helper()
	var keys []*configv1.ResourceKey
	for _, r := range removed {
		keys = append(keys, r.GetKey())
	}
	before := e.builds.Load()
	e.sequence++
	next, change := e.state.Apply(&configv1.Revision{Epoch: "test", Sequence: e.sequence}, upserts, keys)
	if len(change.Rejected) > 0 {
		e.t.Fatal(change.Rejected)
	}
	e.state = next
	e.Apply(next, change, nil)
	return e.builds.Load() - before
}

// edit is change for added or replaced objects.
func (e *fixture) edit(upserts ...*configv1.Resource) int64 { return e.change(upserts, nil) }

// client has requested a class's table, and counts its changes.
type client struct {
	*plan.Class
	heard atomic.Int64
}

// Changed implements plan.Watcher.
func (c *client) Changed(changes, _ plan.Changes) {
	c.heard.Add(int64(len(changes[ndsv1.NameTableType])))
}

// client subscribes to the class of a key.
func (e *fixture) client(key *class.Key) *client {
	e.t.Helper()
	c := &client{}
	c.Class = e.Acquire(key.WithSidecar(e.state, key.Labels), c)
	e.t.Cleanup(func() { e.Release(c.Class, c) })
	return c
}

func (c *client) subscribe() { c.Plan(c, ndsv1.NameTableType, true, nil) }

func (c *client) item() plan.Item {
	item, _ := c.Snapshot().Type(ndsv1.NameTableType).Get(nametable.Name)
	return item
}

// table is the content that the class receives.
func (c *client) table(t *testing.T) map[string][]string {
	t.Helper()
	item := c.item()
	if item.Blob == nil || !item.Wildcard {
		t.Fatalf("no table: %+v", item)
	}
	m, err := item.Blob.Resource.GetResource().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return read(t, m)
}

// A requested table is rebuilt if a change may affect it, once for all classes that see the same, and sent only if it
// differs.
func TestRebuiltOnlyForVisibleChanges(t *testing.T) {
	const (
		web = "web.shop.svc.cluster.local"
		db  = "db.data.svc.cluster.local"
	)
	e := newEngine(t, meshtest.Service("shop", web, 80, at("10.0.0.1")), meshtest.Service("data", db, 80, headless))
	workload := func(namespace, app string) *class.Key {
		key := sidecar(namespace)
		key.Labels = map[string]string{"app": app}
		return key
	}
	clients := []*client{e.client(workload("shop", "a")), e.client(workload("shop", "b")), e.client(workload("data", "c"))}
	if n := e.edit(meshtest.Service("shop", "early.example.com", 80, at("10.0.0.2"))); n != 0 {
		t.Errorf("%d built for nobody", n)
	}
	for _, c := range clients {
		c.subscribe()
	}
	if n := e.builds.Load(); n != 1 {
		t.Errorf("%d built for three classes that see alike", n)
	}
	web2 := meshtest.Service("shop", web, 81, at("10.0.0.1"))
	for _, step := range []struct {
		name             string
		upserts, removed []*configv1.Resource
		// built is the largest number of builds, heard the number of classes that get a new table.
		built, heard int64
	}{
		{name: "endpoints of a service with a VIP", upserts: []*configv1.Resource{meshtest.Endpoints("shop", web, 80, "10.1.0.1")}},
		{name: "a workload", upserts: []*configv1.Resource{meshtest.Workload("shop", "w", "10.1.0.1")}},
		{name: "a DestinationRule", upserts: []*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "shop", "d",
			meshtest.DestinationRule(web, 0))}},
		{name: "a VirtualService", upserts: []*configv1.Resource{
			meshtest.Config(mesh.KindVirtualService, "shop", "v", &networking.VirtualService{Hosts: []string{"new.example.com"}}),
		}},
		{name: "another port", upserts: []*configv1.Resource{web2}, built: 1},
		{name: "a service", upserts: []*configv1.Resource{meshtest.Service("shop", "a.example.com", 80, at("10.0.0.3"))}, built: 1, heard: 3},
		{name: "a service without an address", upserts: []*configv1.Resource{meshtest.Service("shop", "b.example.com", 80)}, built: 1},
		{name: "pods of a headless one", upserts: []*configv1.Resource{pods(db, 80, configv1.Health_HEALTH_READY, "10.1.0.1")}, built: 1,
			heard: 3},
		{name: "one that is not ready", upserts: []*configv1.Resource{func() *configv1.Resource {
			r := pods(db, 80, configv1.Health_HEALTH_READY, "10.1.0.1", "10.1.0.2")
			r.GetEndpointSet().GetEndpoints()[1].Health = configv1.Health_HEALTH_NOT_READY
			return meshtest.Resource(mesh.KindEndpointSet, "data", r.GetKey().GetName(), &configv1.Resource{Body: r.GetBody()})
		}()}, built: 1},
		{name: "a service that one namespace sees", upserts: []*configv1.Resource{
			meshtest.Service("data", "private", 80, at("10.0.0.9"), meshtest.Visible("data")),
		}, built: 2, heard: 1},
		{name: "and sees no more", removed: []*configv1.Resource{meshtest.Service("data", "private", 80)}, built: 2, heard: 1},
		{name: "a service less", removed: []*configv1.Resource{web2}, built: 1, heard: 3},
	} {
		var before []*store.Blob
		for _, c := range clients {
			c.heard.Store(0)
			before = append(before, c.item().Blob)
		}
		if n := e.change(step.upserts, step.removed); n > step.built {
			t.Errorf("%s: %d built, want at most %d", step.name, n, step.built)
		}
		var heard int64
		for i, c := range clients {
			changed := c.item().Blob != before[i]
			if changed != (c.heard.Load() > 0) {
				t.Errorf("%s: table changed %v, client %d heard %d", step.name, changed, i, c.heard.Load())
			}
			if changed {
				heard++
			}
		}
		if heard != step.heard {
			t.Errorf("%s: %d classes have another table, want %d", step.name, heard, step.heard)
		}
	}
	want := map[string][]string{
		"early.example.com": {"10.0.0.2"}, "a.example.com": {"10.0.0.3"}, db: {"10.1.0.1"}, "h-0." + db: {"10.1.0.1"},
	}
	for _, c := range clients {
		if diff := cmp.Diff(want, c.table(t)); diff != "" {
			t.Error(diff)
		}
	}
}

// Without a table an agent answers no query, so there is one without any service, also after services come and go.
func TestEmptyTableIsServed(t *testing.T) {
	e := newEngine(t)
	first, second := e.client(sidecar("shop")), e.client(sidecar("data"))
	blind := e.client(sidecar("blind"))
	clients := []*client{first, second, blind}
	for _, c := range clients {
		c.subscribe()
	}
	web := meshtest.Service("shop", "web", 80, at("10.0.0.1"))
	full, empty := map[string][]string{"web": {"10.0.0.1"}}, map[string][]string{}
	for i, step := range []struct {
		upserts, removed []*configv1.Resource
		want             map[string][]string
	}{
		{want: empty},
		{upserts: []*configv1.Resource{web}, want: full},
		{removed: []*configv1.Resource{web}, want: empty},
		{upserts: []*configv1.Resource{web}, want: full},
	} {
		e.change(step.upserts, step.removed)
		for _, c := range clients {
			if diff := cmp.Diff(step.want, c.table(t)); diff != "" {
				t.Errorf("step %d, %s: %s", i, c.Key().Namespace, diff)
			}
		}
	}
	e.edit(meshtest.Config(mesh.KindSidecar, "blind", "s",
		&networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{"~/*"}}}}))
	lean := e.client(sidecar("blind"))
	if lean.subscribe(); len(lean.table(t)) != 0 {
		t.Errorf("a Sidecar that admits nothing leaves %v", lean.table(t))
	}
}

func benchmark(b *testing.B, services int, step func(e *fixture, i int) int64) {
	var mesh []*configv1.Resource
	for i := range services {
		mesh = append(mesh, meshtest.Service("shop", fmt.Sprintf("s%d.shop.svc.cluster.local", i), 80,
			at(fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))))
	}
	e := newEngine(b, append(mesh, meshtest.Service("data", "db.data.svc.cluster.local", 80, headless))...)
	for i := range 20 {
		e.client(sidecar(fmt.Sprint("n", i))).subscribe()
	}
	i := 0
	var built int64
	for b.Loop() {
		i++
		built += step(e, i)
	}
	b.ReportMetric(float64(built)/float64(i), "tables/op")
}

// The benchmarks have twenty classes that see the same services, each with a client.
func BenchmarkServiceAdded(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmark(b, n, func(e *fixture, i int) int64 {
				return e.edit(meshtest.Service("shop", "new.example.com", 80, at(fmt.Sprintf("10.97.%d.%d", i/250%250, i%250))))
			})
		})
	}
}

func BenchmarkHeadlessEndpoints(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmark(b, n, func(e *fixture, i int) int64 {
				return e.edit(meshtest.Endpoints("data", "db.data.svc.cluster.local", 80, fmt.Sprintf("10.1.%d.%d", i/250%250, i%250)))
			})
		})
	}
}

// BenchmarkOtherEndpoints changes the endpoints of a service with a VIP, which are in no table.
func BenchmarkOtherEndpoints(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmark(b, n, func(e *fixture, i int) int64 {
				return e.edit(meshtest.Endpoints("shop", "s1.shop.svc.cluster.local", 80, fmt.Sprintf("10.1.%d.%d", i/250%250, i%250)))
			})
		})
	}
}
