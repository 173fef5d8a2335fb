package plan_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/timestamppb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/store"
)

// bench is an engine over a mesh that a test edits.
type bench struct {
	*plan.Engine
	set      *plantest.Set
	clock    *testkit.Clock
	registry *prometheus.Registry
	state    *mesh.Snapshot
	sequence uint64
}

func newBench(t *testing.T, resources ...*configv1.Resource) *bench {
	t.Helper()
	b := &bench{set: plantest.New(), clock: testkit.NewClock(meshtest.Epoch), registry: prometheus.NewPedanticRegistry(), state: mesh.Empty()}
	var err error
	b.Engine, err = plan.NewEngine(plan.Config{
		Translators: b.set.Translators(), Store: store.New(), Log: testkit.Logger(t), Registerer: b.registry, Clock: b.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.edit(resources)
	b.set.Builds()
	return b
}

// edit applies one revision and returns the number of resources that came out different.
func (b *bench) edit(upserts []*configv1.Resource, removed ...*configv1.ResourceKey) int {
	b.sequence++
	next, change := b.state.Apply(&configv1.Revision{Epoch: "test", Sequence: b.sequence}, upserts, removed)
	b.state = next
	return b.Apply(next, change, nil)
}

// watcher collects changes.
type watcher struct {
	mu   sync.Mutex
	seen []string
}

func (w *watcher) Changed(changes, _ plan.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for url, names := range changes {
		for _, n := range names {
			w.seen = append(w.seen, url[strings.LastIndexByte(url, '.')+1:]+" "+n)
		}
	}
}

func (w *watcher) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	slices.Sort(seen)
	return slices.Compact(seen)
}

// class acquires a class of a namespace, with wildcard subscriptions to clusters and listeners, and the rest by name.
func (b *bench) class(namespace string, endpoints ...string) (*plan.Class, *watcher) {
	w := &watcher{}
	c := b.Acquire(&class.Key{Type: class.Sidecar, Namespace: namespace, TrustDomain: "cluster.local"}, w)
	c.Plan(w, resource.ClusterType, true, nil)
	c.Plan(w, resource.ListenerType, true, nil)
	c.Plan(w, resource.EndpointType, false, endpoints)
	c.Plan(w, resource.RouteType, false, []string{"80"})
	return c, w
}

func names(c *plan.Class, url string) []string {
	var found []string
	c.Snapshot().Type(url).Scan(func(name string, item plan.Item) bool {
		if item.Blob != nil {
			found = append(found, name)
		}
		return true
	})
	return found
}

func blob(t *testing.T, c *plan.Class, url, name string) *store.Blob {
	t.Helper()
	item, ok := c.Snapshot().Type(url).Get(name)
	if !ok {
		t.Fatalf("%s is not planned", name)
	}
	return item.Blob
}

// aged changes a service.
func aged(s *configv1.Service) { s.CreationTime = timestamppb.New(meshtest.Epoch.Add(time.Second)) }

func key(r *configv1.Resource) *configv1.ResourceKey { return r.GetKey() }

func rule(host string, timeout time.Duration) *networking.DestinationRule {
	return meshtest.DestinationRule(host, timeout)
}

const a, b2 = "a.default.svc.cluster.local", "b.default.svc.cluster.local"

func TestOnlyWhatAChangeTouchesIsBuilt(t *testing.T) {
	services := []*configv1.Resource{
		meshtest.Service("default", a, 80), meshtest.Service("default", b2, 80),
		meshtest.Endpoints("default", a, 80, "10.0.0.1"), meshtest.Endpoints("default", b2, 80, "10.0.0.2"),
	}
	for name, tc := range map[string]struct {
		edit    *configv1.Resource
		builds  map[string]int
		changes []string
	}{
		"workload without a class": {
			meshtest.Workload("default", "w", "10.0.0.9"), map[string]int{}, nil,
		},
		"the same object again": {
			services[0], map[string]int{}, nil,
		},
		"endpoints of one service": {
			meshtest.Endpoints("default", a, 80, "10.0.0.7"),
			map[string]int{"ClusterLoadAssignment 80|" + a: 1},
			[]string{"ClusterLoadAssignment 80|" + a},
		},
		"endpoints without a subscriber": {
			meshtest.Endpoints("default", "c.default.svc.cluster.local", 80, "10.0.0.7"), map[string]int{}, nil,
		},
		"destination rule of one service": {
			meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, time.Second)),
			map[string]int{"Cluster 80|" + a: 1},
			[]string{"Cluster 80|" + a},
		},
		"destination rule that changes no byte": {
			meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, 0)),
			map[string]int{"Cluster 80|" + a: 1}, nil,
		},
		"destination rule of an absent service": {
			meshtest.Config(mesh.KindDestinationRule, "default", "r", rule("c.default.svc.cluster.local", time.Second)), map[string]int{}, nil,
		},
		"destination rule exported to another namespace": {
			meshtest.Config(mesh.KindDestinationRule, "other", "r", rule(a, time.Second), meshtest.ExportedTo("other")),
			map[string]int{"Cluster 80|" + a: 1}, nil,
		},
		"service exported to another namespace": {
			meshtest.Service("other", "o.other.svc.cluster.local", 80, meshtest.Visible("other")),
			map[string]int{"Cluster *o.other.svc.cluster.local": 1, "Listener *o.other.svc.cluster.local": 1}, nil,
		},
		"virtual service": {
			meshtest.Config(mesh.KindVirtualService, "default", "v", &networking.VirtualService{Hosts: []string{a}}),
			map[string]int{"RouteConfiguration 80": 1}, []string{"RouteConfiguration 80"},
		},
		"virtual service of a gateway": {
			meshtest.Config(mesh.KindVirtualService, "default", "v",
				&networking.VirtualService{Hosts: []string{a}, Gateways: []string{"default/gw"}}),
			map[string]int{}, nil,
		},
		"Sidecar that selects others": {
			meshtest.Config(mesh.KindSidecar, "default", "s", &networking.Sidecar{
				WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "x"}},
				Egress:           []*networking.IstioEgressListener{{Hosts: []string{"~/*"}}},
			}), map[string]int{}, nil,
		},
		"peer authentication that changes nothing": {
			meshtest.PeerAuthentication("client", "p", "PERMISSIVE"), map[string]int{}, nil,
		},
		"peer authentication": {
			meshtest.PeerAuthentication("client", "p", "STRICT"), map[string]int{"Listener 80": 2}, []string{"Listener 80"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, services...)
			_, w := b.class("client", "80|"+a, "80|"+b2)
			b.set.Builds()
			b.edit([]*configv1.Resource{tc.edit})
			if d := cmp.Diff(tc.builds, b.set.Builds()); d != "" {
				t.Errorf("builds (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.changes, w.take()); d != "" {
				t.Errorf("changes (-want +got):\n%s", d)
			}
			if got := b.Served().Revision.GetSequence(); got != 2 {
				t.Errorf("serves revision %d, want 2", got)
			}
		})
	}
}

func TestServiceAppearsAndGoes(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80))
	c, w := b.class("default", "80|"+b2)
	if item, held := c.Snapshot().Type(resource.EndpointType).Get("80|" + b2); held {
		t.Fatalf("the plan holds an entry for endpoints of an absent service: %v", item)
	}
	service := meshtest.Service("default", b2, 80)
	b.edit([]*configv1.Resource{service, meshtest.Endpoints("default", b2, 80, "10.0.0.2")})
	if d := cmp.Diff([]string{"Cluster 80|" + b2, "ClusterLoadAssignment 80|" + b2}, w.take()); d != "" {
		t.Errorf("changes when it appears (-want +got):\n%s", d)
	}
	if blob(t, c, resource.EndpointType, "80|"+b2) == nil {
		t.Error("no endpoints after the service appeared: the negative look-up was not recorded")
	}
	version := c.Snapshot().Type(resource.ClusterType).Version()
	b.edit(nil, key(service))
	if d := cmp.Diff([]string{"Cluster 80|" + b2, "ClusterLoadAssignment 80|" + b2}, w.take()); d != "" {
		t.Errorf("changes when it goes (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"80|" + a}, names(c, resource.ClusterType)); d != "" {
		t.Errorf("clusters (-want +got):\n%s", d)
	}
	b.edit([]*configv1.Resource{service})
	if got := c.Snapshot().Type(resource.ClusterType).Version(); got != version {
		t.Errorf("the same set has version %s, before it had %s", got, version)
	}
}

func TestFailureKeepsTheLastGoodVersion(t *testing.T) {
	for name, broken := range map[string]error{"error": errors.New("no"), "panic": plantest.ErrPanic, "invalid": plantest.ErrInvalid} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, meshtest.Service("default", a, 80), meshtest.Service("default", b2, 80))
			c, w := b.class("client")
			good := blob(t, c, resource.ClusterType, "80|"+a)
			b.set.Break("80|"+a, broken)
			b.edit([]*configv1.Resource{
				meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, time.Second)),
				meshtest.Config(mesh.KindDestinationRule, "default", "s", rule(b2, time.Second)),
			})
			if d := cmp.Diff([]string{"Cluster 80|" + b2}, w.take()); d != "" {
				t.Errorf("changes (-want +got):\n%s", d)
			}
			if got := blob(t, c, resource.ClusterType, "80|"+a); got != good {
				t.Errorf("got %v, want the last good version", got)
			}
			failures := c.Failures(resource.ClusterType)
			if len(failures) != 1 || failures[0].Name != "80|"+a || failures[0].Revision.GetSequence() != 2 {
				t.Errorf("failures %v", failures)
			}
			want := "# HELP fairlead_xds_server_failing_resources Resources whose newest version could not be built, or not with all " +
				"EnvoyFilters.\n" +
				"# TYPE fairlead_xds_server_failing_resources gauge\nfairlead_xds_server_failing_resources %d\n"
			if err := testutil.GatherAndCompare(b.registry, strings.NewReader(fmt.Sprintf(want, 1)),
				"fairlead_xds_server_failing_resources"); err != nil {
				t.Error(err)
			}
			b.set.Break("80|"+a, nil)
			b.edit([]*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, 2*time.Second))})
			if d := cmp.Diff([]string{"Cluster 80|" + a}, w.take()); d != "" {
				t.Errorf("changes after mending (-want +got):\n%s", d)
			}
			if got := c.Failures(""); len(got) != 0 {
				t.Errorf("failures after mending: %v", got)
			}
			if err := testutil.GatherAndCompare(b.registry, strings.NewReader(fmt.Sprintf(want, 0)),
				"fairlead_xds_server_failing_resources"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWhatPoliciesDoNotDoIsCounted: of the failures, those that are of policies are counted, while they are.
func TestWhatPoliciesDoNotDoIsCounted(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80))
	c, _ := b.class("client")
	blob(t, c, resource.ClusterType, "80|"+a)
	for i, step := range []struct {
		broken error
		want   int
	}{
		{errors.New("no"), 0}, {&plan.Unenforced{Err: errors.New("a policy")}, 1},
		{&plan.Incomplete{Err: &plan.Unenforced{Err: errors.New("a policy")}}, 1}, {errors.New("no"), 0},
		{&plan.Unenforced{Err: errors.New("a policy")}, 1}, {nil, 0},
	} {
		b.set.Break("80|"+a, step.broken)
		b.edit([]*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, time.Duration(i+1)*time.Second))})
		want := fmt.Sprintf("# HELP fairlead_xds_server_unenforced_resources Those of the failing resources that do not do what an "+
			"AuthorizationPolicy or RequestAuthentication says.\n# TYPE fairlead_xds_server_unenforced_resources gauge\n"+
			"fairlead_xds_server_unenforced_resources %d\n", step.want)
		if err := testutil.GatherAndCompare(b.registry, strings.NewReader(want), "fairlead_xds_server_unenforced_resources"); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

// TestIncompleteIsUsed: a resource that was built without a part of its configuration is used, and reported.
func TestIncompleteIsUsed(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80))
	c, w := b.class("client")
	old := blob(t, c, resource.ClusterType, "80|"+a)
	b.set.Break("80|"+a, &plan.Incomplete{Err: errors.New("without x")})
	b.edit([]*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, time.Second))})
	if d := cmp.Diff([]string{"Cluster 80|" + a}, w.take()); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	if got := blob(t, c, resource.ClusterType, "80|"+a); got == old {
		t.Error("the last version stays")
	}
	if f := c.Failures(""); len(f) != 1 || f[0].Err.Error() != "without x" || b.Failing() != 1 {
		t.Errorf("failures %v", f)
	}
	if _, _, err := c.Explain(resource.ClusterType, "80|"+a); err == nil || err.Error() != "without x" {
		t.Errorf("explained with %v", err)
	}
	b.set.Break("80|"+a, nil)
	b.edit([]*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "default", "r", rule(a, 2*time.Second))})
	if f := c.Failures(""); len(f) != 0 || b.Failing() != 0 {
		t.Errorf("failures after mending %v", f)
	}
}

func TestFailingListKeepsTheLastNames(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80))
	c, _ := b.class("client")
	b.set.Break("*"+b2, errors.New("no"))
	b.edit([]*configv1.Resource{meshtest.Service("default", b2, 80)})
	if d := cmp.Diff([]string{"80|" + a}, names(c, resource.ClusterType)); d != "" {
		t.Errorf("clusters (-want +got):\n%s", d)
	}
	b.set.Break("*"+b2, nil)
	b.edit([]*configv1.Resource{meshtest.Service("default", b2, 80, aged), meshtest.Service("default", "c.default.svc.cluster.local", 80)})
	if got := names(c, resource.ClusterType); len(got) != 3 {
		t.Errorf("clusters after mending: %v", got)
	}
}

func TestClassesSeeOnlyTheirOwn(t *testing.T) {
	secret := "secret.a.svc.cluster.local"
	b := newBench(t, meshtest.Service("default", a, 80), meshtest.Service("a", secret, 80, meshtest.Visible("a")),
		meshtest.Endpoints("a", secret, 80, "10.0.0.1"))
	inside, _ := b.class("a", "80|"+secret)
	outside, w := b.class("b", "80|"+secret)
	if blob(t, inside, resource.EndpointType, "80|"+secret) == nil {
		t.Error("the owner does not see its endpoints")
	}
	if got := blob(t, outside, resource.EndpointType, "80|"+secret); got != nil {
		t.Errorf("another namespace sees %v", got)
	}
	if slices.Contains(names(outside, resource.ClusterType), "80|"+secret) {
		t.Error("another namespace sees the cluster")
	}
	if x, y := blob(t, inside, resource.ClusterType, "80|"+a), blob(t, outside, resource.ClusterType, "80|"+a); x != y {
		t.Error("equal bytes are held twice")
	}
	b.set.Builds()
	b.edit([]*configv1.Resource{meshtest.Endpoints("a", secret, 80, "10.0.0.2")})
	if got := w.take(); got != nil {
		t.Errorf("another namespace hears of %v", got)
	}
}

func TestUnusedIsDropped(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80), meshtest.Endpoints("default", a, 80, "10.0.0.1"))
	c, w := b.class("default", "80|"+a)
	kept, keptBy := b.class("other", "80|"+a)
	kept.Release(keptBy, resource.EndpointType, []string{"80|" + a})
	b.Release(c, w)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = b.Run(ctx) }()
	b.clock.WaitFor(t, 1)
	b.clock.Advance(plan.DefaultLinger / 2)
	b.clock.WaitFor(t, 1)
	if got := len(b.Classes()); got != 2 {
		t.Fatalf("%d classes before the linger time is over", got)
	}
	if d := cmp.Diff([]string{"80|" + a}, names(kept, resource.EndpointType)); d != "" {
		t.Errorf("endpoints before the linger time is over (-want +got):\n%s", d)
	}
	for range 2 {
		b.clock.Advance(plan.DefaultLinger)
		b.clock.WaitFor(t, 1)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := len(b.Classes()); got != 1 {
			return fmt.Errorf("%d classes", got)
		}
		if got := names(kept, resource.EndpointType); len(got) != 0 {
			return fmt.Errorf("endpoints %v", got)
		}
		return nil
	})
	b.set.Builds()
	b.edit([]*configv1.Resource{meshtest.Endpoints("default", a, 80, "10.0.0.2")})
	if got := maps.Collect(maps.All(b.set.Builds())); len(got) != 0 {
		t.Errorf("built without a subscriber: %v", got)
	}
	b.Release(kept, keptBy)
}

func TestAClassAcquiredDuringAnUpdateMissesNothing(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				c, w := b.class(fmt.Sprint("ns", i), "80|"+a)
				b.Release(c, w)
			}
		})
	}
	for i := range 100 {
		b.edit([]*configv1.Resource{meshtest.Endpoints("default", a, 80, fmt.Sprintf("10.0.0.%d", i+1))})
	}
	wg.Wait()
	fresh := newBench(t, meshtest.Service("default", a, 80), meshtest.Endpoints("default", a, 80, "10.0.0.100"))
	want, _ := fresh.class("x", "80|"+a)
	for _, c := range b.Classes() {
		got := blob(t, c, resource.EndpointType, "80|"+a).Version()
		if got != blob(t, want, resource.EndpointType, "80|"+a).Version() {
			t.Errorf("class %s is behind", c)
		}
	}
}

// TestNothingIsLeftOfAClassThatIsDropped: who depends on what is forgotten with the class, and so are the plans below
// it and the names that it waits for.
func TestNothingIsLeftOfAClassThatIsDropped(t *testing.T) {
	b := newBench(t, meshtest.Service("default", a, 80), meshtest.Service("other", "secret."+a, 80, meshtest.Visible("other")))
	for _, namespace := range []string{"default", "other"} {
		c, w := b.class(namespace, "80|"+a, "80|secret."+a, "80|absent")
		b.edit([]*configv1.Resource{meshtest.Endpoints("default", a, 80, "10.0.0.1")})
		b.Release(c, w)
	}
	if b.Interests() == 0 {
		t.Fatal("nothing depends on anything")
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = b.Run(ctx) }()
	for range 3 {
		b.clock.WaitFor(t, 1)
		b.clock.Advance(plan.DefaultLinger)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := b.Interests(); n > 0 {
			return fmt.Errorf("%d interests are left", n)
		}
		return nil
	})
}
