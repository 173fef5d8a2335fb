package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/store"
)

// TestScopePlansAgreeWithDirectTranslation applies random revisions and compares every resource of every class with
// what the translators make for its key alone from the same snapshot of the mesh.
func TestScopePlansAgreeWithDirectTranslation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		keys := []*class.Key{
			{Type: class.Sidecar, Namespace: "a"}, {Type: class.Sidecar, Namespace: "b"}, {Type: class.Sidecar, Namespace: "elsewhere"},
			{Type: class.Sidecar, Namespace: "a", Labels: map[string]string{"app": "x"}},
			{Type: class.Sidecar, Namespace: "b", Labels: map[string]string{"uses": "80|shared.example.com"}},
			{Type: class.Sidecar, Namespace: "b", Sidecar: "b/s"}, {Type: class.Router, Namespace: "a"},
		}
		var classes []*plan.Class
		seen := map[*plan.Class]*mirror{}
		join := func(key *class.Key) {
			m := &mirror{}
			c := b.Acquire(key, m)
			m.class = c
			c.Plan(m, resource.ClusterType, true, nil)
			c.Plan(m, resource.ListenerType, true, nil)
			c.Plan(m, resource.EndpointType, false, someEndpoints)
			c.Plan(m, resource.RouteType, false, []string{"80", "81"})
			m.copyAll()
			classes, seen[c] = append(classes, c), m
		}
		for i := range 25 {
			if i%4 == 0 && len(keys) > 0 {
				join(keys[0])
				keys = keys[1:]
			}
			// A watcher of one class subscribes by name to what others list, or unsubscribes.
			if c := classes[rapid.IntRange(0, len(classes)-1).Draw(rt, "class")]; rapid.Bool().Draw(rt, "subscribes") {
				c.Plan(seen[c], resource.ClusterType, false, []string{rapid.SampledFrom(someEndpoints).Draw(rt, "cluster")})
			} else {
				c.Release(seen[c], resource.ClusterType, someEndpoints)
			}
			upserts, removed := randomRevision(rt)
			b.edit(upserts, removed...)
			for _, c := range classes {
				compare(rt, b, c)
				seen[c].verify(rt)
			}
		}
	})
}

// TestAWorkloadNamesWhatItsNamespaceHasReplaced: the mesh has a cluster that no list of the namespace names, because
// the namespace has a service of its own for the host. A list of one workload names it all the same: the workload must
// not get the mesh's.
func TestAWorkloadNamesWhatItsNamespaceHasReplaced(t *testing.T) {
	const host = "shared.example.com"
	name := plantest.ClusterName(80, host)
	b := newBench(t, meshtest.Service("a", host, 80))
	c := b.Acquire(&class.Key{Type: class.Sidecar, Namespace: "b", Labels: map[string]string{"uses": name}}, &watcher{})
	c.Plan(&watcher{}, resource.ClusterType, true, nil)
	if blob(t, c, resource.ClusterType, name) == nil {
		t.Fatal("the workload lacks the mesh's cluster")
	}
	own := meshtest.Service("b", host, 81, meshtest.Visible("b"))
	b.edit([]*configv1.Resource{own})
	if item, _ := c.Snapshot().Type(resource.ClusterType).Get(name); item.Blob != nil {
		t.Error("the workload has the cluster of a service that its namespace does not see")
	}
	b.edit(nil, key(own))
	if blob(t, c, resource.ClusterType, name) == nil {
		t.Error("the workload lacks the mesh's cluster after its namespace's service is gone")
	}
}

var (
	someHosts     = []string{"x.a.svc.cluster.local", "y.a.svc.cluster.local", "x.b.svc.cluster.local", "shared.example.com"}
	someEndpoints = endpointNames()
)

func endpointNames() []string {
	var names []string
	for _, host := range someHosts {
		names = append(names, "80|"+host, "81|"+host)
	}
	return names
}

// randomRevision changes one or two objects of a small mesh full of conflicts.
func randomRevision(rt *rapid.T) (upserts []*configv1.Resource, removed []*configv1.ResourceKey) {
	seen := map[string]bool{}
	for range rapid.IntRange(1, 2).Draw(rt, "objects") {
		r := randomObject(rt)
		if k := r.GetKey().String(); seen[k] {
			continue
		} else {
			seen[k] = true
		}
		if rapid.IntRange(0, 3).Draw(rt, "remove") == 0 {
			removed = append(removed, r.GetKey())
		} else {
			upserts = append(upserts, r)
		}
	}
	return upserts, removed
}

func randomObject(rt *rapid.T) *configv1.Resource {
	ns := rapid.SampledFrom([]string{"a", "b", "istio-system"}).Draw(rt, "namespace")
	host := rapid.SampledFrom(someHosts).Draw(rt, "host")
	to := rapid.SampledFrom([][]string{{"*"}, {"a"}, {"b"}, {"a", "b"}, {"elsewhere"}}).Draw(rt, "exported to")
	port := rapid.SampledFrom([]uint32{80, 81}).Draw(rt, "port")
	n := rapid.IntRange(1, 3).Draw(rt, "variant")
	withVisibility := func(r *configv1.Resource) *configv1.Resource {
		if to[0] != "*" && rapid.Bool().Draw(rt, "visibility") {
			return meshtest.VisibleOnlyIn(r, to...)
		}
		return r
	}
	switch rapid.IntRange(0, 6).Draw(rt, "kind") {
	case 0, 1:
		return withVisibility(meshtest.Service(ns, host, port, meshtest.Visible(to...), func(s *configv1.Service) {
			s.CreationTime, s.MeshExternal = timestamppb.New(meshtest.Epoch.Add(time.Duration(n)*time.Second)), n == 3
		}))
	case 2:
		return withVisibility(meshtest.Endpoints(ns, host, port, fmt.Sprintf("10.0.0.%d", n)))
	case 3:
		host = rapid.SampledFrom([]string{host, "*.a.svc.cluster.local", "*.local"}).Draw(rt, "rule host")
		name := rapid.SampledFrom([]string{"r1", "r2"}).Draw(rt, "rule")
		return meshtest.Config(mesh.KindDestinationRule, ns, name, rule(host, time.Duration(n)*time.Second), meshtest.ExportedTo(to...))
	case 4:
		return meshtest.Config(mesh.KindVirtualService, ns, "v",
			&networking.VirtualService{Hosts: []string{host, fmt.Sprintf("only%d.example.com", n)}},
			meshtest.ExportedTo(to...))
	case 5:
		selector := rapid.SampledFrom([]string{"", "workloadSelector: {labels: {app: x}}", "priority: 1"}).Draw(rt, "selector")
		side := rapid.SampledFrom([]string{"SIDECAR_OUTBOUND", "ANY", "SIDECAR_INBOUND"}).Draw(rt, "side")
		return meshtest.EnvoyFilter(ns, fmt.Sprint("f", n),
			selector+"\nconfigPatches: [{applyTo: CLUSTER, match: {context: "+side+"}, patch: {operation: REMOVE}}]")
	default:
		hosts := rapid.SampledFrom([][]string{{"*/*"}, {"./*"}, {"a/*"}, {"~/*"}}).Draw(rt, "egress")
		return meshtest.Config(mesh.KindSidecar, "b", "s", &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: hosts}}})
	}
}

// compare checks a class's snapshot against direct translation.
func compare(rt rapid.TB, b *bench, c *plan.Class) {
	snapshot := c.Snapshot()
	for _, tr := range b.set.Translators() {
		want := map[string]string{}
		add := func(names []string, err error) {
			if err != nil {
				rt.Fatal(err)
			}
			for _, name := range names {
				want[name] = built(rt, tr, c.Key(), b.state, name)
			}
		}
		if tr.TypeURL() == resource.ClusterType || tr.TypeURL() == resource.ListenerType {
			add(plan.List(tr, c.Key(), b.state))
		} else {
			names := someEndpoints
			if tr.TypeURL() == resource.RouteType {
				names = []string{"80", "81"}
			}
			add(names, nil)
		}
		got := map[string]string{}
		count := 0
		snapshot.Type(tr.TypeURL()).Scan(func(name string, item plan.Item) bool {
			if item.Wildcard && item.Blob != nil {
				count++
			}
			if _, asked := want[name]; asked || item.Wildcard {
				got[name] = ""
				if item.Blob != nil {
					got[name] = item.Blob.Version()
				}
			} else if item.Blob != nil && item.Wildcard {
				rt.Fatalf("%s: %s has %s, which it should not", c, tr.TypeURL(), name)
			}
			return true
		})
		// An absent name may have an item or none.
		for _, versions := range []map[string]string{want, got} {
			maps.DeleteFunc(versions, func(_, version string) bool { return version == "" })
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Fatalf("%s: %s (-want +got):\n%s", c, tr.TypeURL(), d)
		}
		if tr.TypeURL() == resource.ClusterType && count != snapshot.Type(tr.TypeURL()).Len() {
			rt.Fatalf("%d clusters, counted %d", count, snapshot.Type(tr.TypeURL()).Len())
		}
	}
}

func built(rt rapid.TB, tr plan.Translator, key *class.Key, state *mesh.Snapshot, name string) string {
	m, err := tr.Build(input.NewView(key, state).Reader(), name)
	if err != nil {
		rt.Fatal(err)
	}
	if m == nil {
		return ""
	}
	b, err := store.New().Put(tr.TypeURL(), name, m)
	if err != nil {
		rt.Fatal(err)
	}
	return b.Version()
}

// mirror keeps a copy of a class's resources, from the changes that it is notified of.
type mirror struct {
	class *plan.Class
	held  map[string]plan.Item
}

func (m *mirror) Changed(changes, arrived plan.Changes) {
	for url, names := range arrived {
		for _, name := range names {
			if m.held[url+" "+name].Blob != nil {
				panic("arrived again: " + name)
			}
		}
	}
	for url, names := range changes {
		for _, name := range names {
			item, _ := m.class.Snapshot().Type(url).Get(name)
			m.put(url, name, item)
		}
	}
}

func (m *mirror) put(url, name string, item plan.Item) {
	if delete(m.held, url+" "+name); item.Blob != nil {
		m.held[url+" "+name] = item
	}
}

func (m *mirror) copyAll() { m.held = m.now() }

func (m *mirror) now() map[string]plan.Item {
	held := map[string]plan.Item{}
	snapshot := m.class.Snapshot()
	for _, url := range snapshot.URLs() {
		snapshot.Type(url).Scan(func(name string, item plan.Item) bool {
			if item.Blob != nil {
				held[url+" "+name] = item
			}
			return true
		})
	}
	return held
}

// verify fails if the mirror was not notified of a change.
func (m *mirror) verify(rt rapid.TB) {
	now := m.now()
	for name, item := range now {
		if m.held[name] != item {
			rt.Fatalf("%s: no notification that %s has changed", m.class, name)
		}
	}
	var gone []string
	for name := range m.held {
		if _, ok := now[name]; !ok {
			gone = append(gone, name)
		}
	}
	if slices.Sort(gone); len(gone) > 0 {
		rt.Fatalf("%s: no notification that %v are gone", m.class, gone)
	}
}
