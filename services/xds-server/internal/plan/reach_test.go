package plan_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// servicesOfTeam are how many services each of the namespaces has that teamMesh makes.
const servicesOfTeam = 10

func team(n int) string { return fmt.Sprintf("team%d", n) }

func hostOfTeam(n, service int) string {
	return fmt.Sprintf("s%d.%s.svc.cluster.local", service, team(n))
}

// teamMesh has namespaces of services, a VirtualService in each, and a Sidecar in each that admits the hosts.
func teamMesh(teams int, egress ...string) []*configv1.Resource {
	var out []*configv1.Resource
	for n := range teams {
		for i := range servicesOfTeam {
			out = append(out, meshtest.Service(team(n), hostOfTeam(n, i), 80))
		}
		out = append(out, routeTo(team(n), "vs", hostOfTeam(n, 0), hostOfTeam(n, 1)), egressOf(team(n), egress...))
	}
	return out
}

func egressOf(namespace string, hosts ...string) *configv1.Resource {
	s := &networking.Sidecar{}
	if len(hosts) > 0 {
		s.Egress = []*networking.IstioEgressListener{{Hosts: hosts}}
	}
	return meshtest.Config(mesh.KindSidecar, namespace, "s", s)
}

func routeTo(namespace, name, host string, destinations ...string) *configv1.Resource {
	route := &networking.HTTPRoute{}
	for _, d := range destinations {
		route.Route = append(route.Route, &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: d}})
	}
	return meshtest.Config(mesh.KindVirtualService, namespace, name,
		&networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{route}})
}

// joinTeams plans a class of each of the namespaces, with its Sidecar.
func (b *bench) joinTeams(teams int) (joined []*mirror) {
	for n := range teams {
		m := &mirror{}
		key := (&class.Key{Type: class.Sidecar, Namespace: team(n), DNSDomain: team(n) + ".svc.cluster.local"}).WithSidecar(b.state, nil)
		m.class = b.Acquire(key, m)
		m.class.Plan(m, resource.ClusterType, true, nil)
		m.class.Plan(m, resource.ListenerType, true, nil)
		m.class.Plan(m, resource.RouteType, false, []string{"80"})
		m.copyAll()
		joined = append(joined, m)
	}
	return joined
}

func liveHeap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // far below the largest int
}

// TestNamespacesWithASidecarKeepOnlyWhatTheyReach: what is kept of such a namespace does not grow with the mesh.
func TestNamespacesWithASidecarKeepOnlyWhatTheyReach(t *testing.T) {
	const joining = 20
	type kept struct{ nodes, heap int }
	measure := func(teams int, egress ...string) kept {
		b := newBench(t, teamMesh(teams, egress...)...)
		before := liveHeap()
		joined := b.joinTeams(joining)
		k := kept{b.Nodes(), liveHeap() - before}
		t.Logf("%d services, egress %q: %d nodes, %d bytes for each of %d namespaces", teams*servicesOfTeam, egress, k.nodes/joining,
			k.heap/joining, joining)
		runtime.KeepAlive(joined)
		return k
	}
	measure(joining, "./*", "team0/*") // warms up
	var small, large kept
	// What ends meanwhile of other tests is in the heap as well: that does not happen three times.
	for range 3 {
		small, large = measure(joining, "./*", "team0/*"), measure(20*joining, "./*", "team0/*")
		if large.heap <= 2*small.heap {
			break
		}
	}
	if large.nodes != small.nodes {
		t.Errorf("%d nodes in a mesh of twenty times the size, %d in the small one", large.nodes, small.nodes)
	}
	// A namespace reaches twenty services. Each has a list and a resource of either type at most, and each plan a few
	// nodes of its own.
	if most := joining * (4*2*servicesOfTeam + 20); small.nodes > most {
		t.Errorf("%d nodes, want %d at most", small.nodes, most)
	}
	if large.heap > 2*small.heap {
		t.Errorf("%d bytes in a mesh of twenty times the size, %d in the small one", large.heap, small.heap)
	}
	// The measure is of what it should be: without the limit everything is planned.
	for _, egress := range [][]string{{"*/*"}, nil} {
		if all := measure(2*joining, egress...); all.nodes < 2*joining*joining*servicesOfTeam {
			t.Errorf("egress %q: only %d nodes", egress, all.nodes)
		}
	}
}

// TestAChangeIsPlannedOnlyWhereItIsReached: a change runs translators only for the namespaces that reach its host.
func TestAChangeIsPlannedOnlyWhereItIsReached(t *testing.T) {
	const teams = 10
	const added = "added.team7.svc.cluster.local"
	for name, tc := range map[string]struct {
		first, edit *configv1.Resource
		host        string
		lists       int
	}{
		"a new Service": {nil, meshtest.Service(team(7), added, 80), added, 1},
		"a new Service that all reach": {nil, meshtest.Service(team(0), "added.team0.svc.cluster.local", 80), "added.team0.svc.cluster.local",
			teams},
		"a changed Service":               {nil, meshtest.Service(team(7), hostOfTeam(7, 3), 80, aged), hostOfTeam(7, 3), 1},
		"a new host of a VirtualService":  {nil, routeTo(team(7), "vs2", "only.example.com"), "only.example.com", 1},
		"a VirtualService that imports":   {nil, routeTo(team(7), "vs2", hostOfTeam(7, 2), hostOfTeam(3, 4)), hostOfTeam(3, 4), 1},
		"one that imports from elsewhere": {nil, routeTo(team(0), "vs2", hostOfTeam(0, 2), hostOfTeam(3, 4)), hostOfTeam(3, 4), teams - 1},
		"an import that appears": {routeTo(team(7), "vs2", hostOfTeam(7, 2), "late.team3.svc.cluster.local"),
			meshtest.Service(team(3), "late.team3.svc.cluster.local", 80), "late.team3.svc.cluster.local", 2},
		"a Sidecar that admits more":      {nil, egressOf(team(7), "./*", "team0/*", "team3/*"), hostOfTeam(3, 4), 1},
		"a Sidecar that no longer limits": {nil, egressOf(team(7), "*/*"), hostOfTeam(3, 4), 1},
		"a Service that is exported again": {meshtest.Service(team(7), added, 80, meshtest.Visible("nobody")),
			meshtest.Service(team(7), added, 80), added, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, teamMesh(teams, "./*", "team0/*")...)
			joined := b.joinTeams(teams)
			if tc.first != nil {
				b.edit([]*configv1.Resource{tc.first})
			}
			b.set.Builds()
			b.edit([]*configv1.Resource{tc.edit})
			if built := b.set.Builds(); built["Cluster *"+tc.host] != tc.lists || built["Listener *"+tc.host] != tc.lists {
				t.Errorf("lists of %s were built for %d and %d namespaces, want %d", tc.host, built["Cluster *"+tc.host], built["Listener *"+tc.host],
					tc.lists)
			}
			for _, m := range joined {
				compare(t, b, m.class)
				m.verify(t)
			}
		})
	}
}

// TestWhatIsReachedNoMoreIsForgotten: a Sidecar that admits less leaves as many nodes as one that never admitted more.
func TestWhatIsReachedNoMoreIsForgotten(t *testing.T) {
	const teams = 10
	fresh := newBench(t, teamMesh(teams, "./*")...)
	fresh.joinTeams(teams)
	b := newBench(t, teamMesh(teams, "./*")...)
	joined := b.joinTeams(teams)
	for _, more := range [][]*configv1.Resource{
		{egressOf(team(7), "*/*")}, {egressOf(team(7), "./*", "team3/*")}, {routeTo(team(7), "vs2", hostOfTeam(7, 2), hostOfTeam(3, 4))},
		{meshtest.Service(team(7), "added.team7.svc.cluster.local", 80)},
	} {
		b.edit(more)
		if b.Nodes() <= fresh.Nodes() {
			t.Fatalf("%v: %d nodes, as many as before", more[0].GetKey(), b.Nodes())
		}
		held := map[string]*configv1.Resource{}
		for _, r := range teamMesh(teams, "./*") {
			held[r.GetKey().String()] = r
		}
		if before := held[more[0].GetKey().String()]; before != nil {
			b.edit([]*configv1.Resource{before})
		} else {
			b.edit(nil, more[0].GetKey())
		}
		if b.Nodes() != fresh.Nodes() {
			t.Errorf("%v: %d nodes are left, want %d", more[0].GetKey(), b.Nodes(), fresh.Nodes())
		}
		for _, m := range joined {
			compare(t, b, m.class)
			m.verify(t)
		}
	}
}

// TestListsThatAreAlwaysEmptyAreNotKept: the translator of endpoints lists nothing, and reads nothing for it, as that
// of clusters for on-demand proxies.
func TestListsThatAreAlwaysEmptyAreNotKept(t *testing.T) {
	b := newBench(t, teamMesh(5)...)
	w := &watcher{}
	c := b.Acquire(&class.Key{Type: class.Sidecar, Namespace: "elsewhere"}, w)
	c.Plan(w, resource.ListenerType, true, nil)
	before := b.Nodes()
	c.Plan(w, resource.EndpointType, true, nil)
	for range 3 {
		added := meshtest.Service(team(1), "added.team1.svc.cluster.local", 80)
		b.edit([]*configv1.Resource{added})
		b.edit(nil, added.GetKey())
	}
	if got := b.Nodes(); got > before+1 {
		t.Errorf("%d nodes, want %d and the one of the names that depend on no host", got, before)
	}
}

// TestASidecarThatAdmitsNothingMayAdmitSomethingLater: no resource depends on what such a Sidecar admits.
func TestASidecarThatAdmitsNothingMayAdmitSomethingLater(t *testing.T) {
	b := newBench(t, append(teamMesh(2, "./*"), egressOf(team(1), "~/*"))...)
	w := &watcher{}
	c := b.Acquire((&class.Key{Type: class.Sidecar, Namespace: team(1)}).WithSidecar(b.state, nil), w)
	c.Plan(w, resource.ClusterType, true, nil)
	c.DropUnusedAnswers()
	if got := names(c, resource.ClusterType); len(got) != 0 {
		t.Fatalf("clusters %q", got)
	}
	b.edit([]*configv1.Resource{egressOf(team(1), "*/"+hostOfTeam(0, 3))})
	if got := names(c, resource.ClusterType); len(got) != 1 || got[0] != "80|"+hostOfTeam(0, 3) {
		t.Errorf("clusters %q", got)
	}
}
