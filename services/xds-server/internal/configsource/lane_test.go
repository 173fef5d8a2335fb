package configsource_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/configsource"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// update is one call of Apply or ApplyEndpoints.
type update struct {
	endpoints bool
	state     *mesh.Snapshot
}

// lane is a client whose proxies have not answered the first revision, which has the services a and b with endpoints.
// Its clock stands still.
type lane struct {
	t       *testing.T
	watch   *watchFake
	updates chan update
	bans    chan *mesh.Snapshot
	clock   *testkit.Clock
	fleet   *fleetFake
	next    uint64
}

func busyLane(t *testing.T) *lane {
	t.Helper()
	l := &lane{t: t, updates: make(chan update, 100), bans: make(chan *mesh.Snapshot, 100), clock: testkit.NewClock(meshtest.Epoch),
		fleet: &fleetFake{}, next: 2}
	var fake *watcherFake
	fake, _, _ = followWith(t, nil, func(cfg *configsource.Config) {
		cfg.Clock, cfg.Busy = l.clock, l.fleet.busy
		cfg.Bans = func(s *mesh.Snapshot) { l.bans <- s }
		cfg.Apply = func(s *mesh.Snapshot, _ *mesh.Change) { l.updates <- update{false, s} }
		cfg.ApplyEndpoints = func(s *mesh.Snapshot, _ *mesh.Change) { l.updates <- update{true, s} }
	})
	l.watch = take(t, fake.streams)
	l.watch.send <- chunk("e", 1, true, serviceOf("a"), endpoints("a", "1"), serviceOf("b"), endpoints("b", "1"))
	take(t, l.updates)
	take(t, l.watch.acks)
	l.fleet.mu.Lock()
	l.fleet.settled = make(chan struct{})
	l.fleet.mu.Unlock()
	return l
}

func serviceOf(host string) *configv1.Resource { return meshtest.Service("default", host, 80) }

func endpoints(host, last string) *configv1.Resource {
	return meshtest.Endpoints("default", host, 80, "10.0.0."+last)
}

func rule(host string) *configv1.Resource {
	return meshtest.Config(mesh.KindDestinationRule, "default", host, meshtest.DestinationRule(host, time.Second))
}

// send sends the next revision.
func (l *lane) send(upserts ...*configv1.Resource) {
	l.watch.send <- chunk("e", l.next, true, upserts...)
	l.next++
}

// wait sends a revision of configuration, which waits for the proxies.
func (l *lane) wait(upserts ...*configv1.Resource) {
	l.t.Helper()
	l.send(upserts...)
	l.clock.WaitFor(l.t, 1)
}

// applied is what one update has made.
type appliedUpdate struct {
	Endpoints bool
	Revision  uint64
	Address   string // of the endpoint of a
	Rule      bool   // whether there is one for a
}

func (l *lane) applied() appliedUpdate {
	l.t.Helper()
	u := take(l.t, l.updates)
	got := appliedUpdate{Endpoints: u.endpoints, Revision: u.state.Revision().GetSequence()}
	for _, set := range u.state.Endpoints(u.state.ServiceIn("a", "default", 80), 80) {
		got.Address = set.GetEndpoints()[0].GetAddress()
	}
	got.Rule = u.state.HashOf(mesh.Key{Kind: mesh.KindDestinationRule, Namespace: "default", Name: "a"}) != ""
	return got
}

// No time passes before the proxies have answered: what waits for them would wait for ever.
func TestEndpointsOvertakeConfigurationThatWaitsForProxies(t *testing.T) {
	l := busyLane(t)
	l.send(endpoints("a", "2"))
	if d := cmp.Diff(appliedUpdate{true, 2, "10.0.0.2", false}, l.applied()); d != "" {
		t.Errorf("with nothing else to apply (-want +got):\n%s", d)
	}
	if got := take(t, l.watch.acks); got != 2 {
		t.Errorf("acknowledged %d", got)
	}

	l.wait(rule("a"))
	for _, last := range []string{"3", "4"} {
		l.send(endpoints("a", last))
		if d := cmp.Diff(appliedUpdate{true, 2, "10.0.0." + last, false}, l.applied()); d != "" {
			t.Errorf("the newest state without the rule, which keeps its revision (-want +got):\n%s", d)
		}
	}
	l.send(endpoints("b", "2"), meshtest.Workload("default", "w", "10.0.0.2"))
	l.applied()
	select {
	case got := <-l.watch.acks:
		t.Errorf("acknowledged %d, of which the configuration waits", got)
	default:
	}

	close(l.fleet.settled)
	l.clock.WaitFor(t, 1)
	l.clock.Advance(50 * time.Millisecond) // between two batches, while endpoints change
	if d := cmp.Diff(appliedUpdate{false, 6, "10.0.0.4", true}, l.applied()); d != "" {
		t.Errorf("after the proxies have answered (-want +got):\n%s", d)
	}
	if got := take(t, l.watch.acks); got != 6 {
		t.Errorf("acknowledged %d", got)
	}
}

// A client that config-watcher was ahead of receives several revisions as one, in which endpoints are marked.
func TestMarkedEndpointsOvertakeTheRestOfTheirRevision(t *testing.T) {
	for _, tc := range []struct {
		name string
		rest *configv1.Resource
		want appliedUpdate
	}{
		{"a rule", rule("a"), appliedUpdate{true, 1, "10.0.0.2", false}},
		{"but not their Service", meshtest.Service("default", "a", 80, meshtest.Visible("default")), appliedUpdate{false, 2, "10.0.0.2", false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := busyLane(t)
			l.watch.send <- chunk("e", 2, false, tc.rest)
			m := chunk("e", 2, true, endpoints("a", "2"))
			m.Endpoints = true
			l.watch.send <- m
			if d := cmp.Diff(tc.want, l.applied()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// What endpoints may depend on is applied before them, all of it at once.
func TestEndpointsDoNotOvertakeWhatTheyDependOn(t *testing.T) {
	pod := func(set *configv1.Resource) *configv1.Resource {
		set.GetEndpointSet().Endpoints[0].Workload = "default/w"
		return meshtest.Resource(mesh.KindEndpointSet, "default", set.GetKey().GetName(), &configv1.Resource{Body: set.GetBody()})
	}
	for _, tc := range []struct {
		name     string
		waiting  []*configv1.Resource
		then     *configv1.Resource
		overtake bool
	}{
		{name: "their Service", waiting: []*configv1.Resource{meshtest.Service("default", "a", 80, meshtest.Visible("default"))},
			then: endpoints("a", "2")},
		{name: "themselves, changed with configuration", waiting: []*configv1.Resource{rule("a"), endpoints("a", "3")},
			then: endpoints("a", "2")},
		{name: "endpoints of another port", waiting: []*configv1.Resource{rule("a"), meshtest.Endpoints("default", "a", 81, "10.0.0.3")},
			then: endpoints("a", "2")},
		{name: "the Workload behind them", waiting: []*configv1.Resource{rule("a"), meshtest.Workload("default", "w", "10.0.0.2")},
			then: pod(endpoints("a", "2"))},
		{
			name: "a Namespace", waiting: []*configv1.Resource{meshtest.Resource(mesh.KindNamespace, "", "x",
				&configv1.Resource{Body: &configv1.Resource_Namespace{Namespace: &configv1.Namespace{}}})}, then: endpoints("a", "2")},
		{name: "MeshConfig", waiting: []*configv1.Resource{meshtest.Mesh(nil)}, then: endpoints("a", "2")},
		{name: "but another Service", waiting: []*configv1.Resource{meshtest.Service("default", "b", 81)}, then: endpoints("a", "2"),
			overtake: true},
		{name: "but another Workload", waiting: []*configv1.Resource{rule("a"), meshtest.Workload("default", "v", "10.0.0.2")},
			then: pod(endpoints("a", "2")), overtake: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := busyLane(t)
			l.wait(tc.waiting...)
			l.send(tc.then)
			got := l.applied()
			if got.Address != "10.0.0.2" {
				t.Errorf("endpoint %s", got.Address)
			}
			want := uint64(3)
			if tc.overtake {
				want = 1
			}
			if got.Endpoints != tc.overtake || got.Revision != want {
				t.Errorf("endpoints alone %v, revision %d", got.Endpoints, got.Revision)
			}
		})
	}
}

// While one update is applied, endpoints gather in their newest state.
func TestEndpointsGatherInTheirNewestState(t *testing.T) {
	gate, calls := make(chan struct{}), make(chan *mesh.Snapshot, 100)
	fake, c, _ := followWith(t, nil, func(cfg *configsource.Config) {
		cfg.ApplyEndpoints = func(s *mesh.Snapshot, _ *mesh.Change) {
			calls <- s
			<-gate
		}
	})
	w := take(t, fake.streams)
	w.send <- chunk("e", 1, true, serviceOf("a"), endpoints("a", "1"))
	take(t, w.acks)
	const last = 200
	for i := range uint64(last) {
		w.send <- chunk("e", i+2, true, endpoints("a", fmt.Sprint(i)))
		if i == 0 {
			take(t, calls)
		}
	}
	received(t, c, last+1)
	close(gate)
	got := take(t, calls)
	if sets := got.Endpoints(got.ServiceIn("a", "default", 80), 80); sets[0].GetEndpoints()[0].GetAddress() != "10.0.0.199" {
		t.Errorf("the update has %v", sets)
	}
	for _, want := range []uint64{2, last + 1} {
		if got := take(t, w.acks); got != want {
			t.Errorf("acknowledged %d, want %d", got, want)
		}
	}
}

// A client that has to open the watch again says that it holds what is in its queue.
func TestQueueIsHeldWhenTheWatchIsOpenedAgain(t *testing.T) {
	gate := make(chan struct{})
	fake, c, got := follow(t, gate)
	w := take(t, fake.streams)
	w.send <- chunk("e", 1, true, serviceOf("a"), endpoints("a", "1"))
	take(t, got)
	w.send <- chunk("e", 2, true, serviceOf("b"), rule("a"))
	w.send <- chunk("e", 3, true, endpoints("a", "2"), endpoints("c", "2"))
	m := chunk("e", 4, true, rule("b"))
	m.Removed = []*configv1.ResourceKey{rule("a").GetKey()}
	w.send <- m
	received(t, c, 4)
	w.end <- status.Error(codes.Unavailable, "restarting")
	again := take(t, fake.streams)
	if d := cmp.Diff(map[string]int{"Service": 2, "EndpointSet": 2, "DestinationRule": 1}, again.held); d != "" {
		t.Errorf("held (-want +got):\n%s", d)
	}
	close(gate)
}

// A ban takes effect at once, whatever the proxies have not answered.
func TestBansDoNotWaitForProxies(t *testing.T) {
	l := busyLane(t)
	l.wait(rule("a"))
	l.send(meshtest.Resource(mesh.KindIdentityBan, "", "b", &configv1.Resource{Body: &configv1.Resource_IdentityBan{
		IdentityBan: &configv1.IdentityBan{Identity: "spiffe://cluster.local/ns/x/sa/y"},
	}}))
	if bans := take(t, l.bans).IdentityBans(); len(bans) != 1 || bans[0].GetIdentity() != "spiffe://cluster.local/ns/x/sa/y" {
		t.Errorf("bans %v", bans)
	}
	select {
	case u := <-l.updates:
		t.Errorf("%v was applied", u.state)
	default:
	}
}
