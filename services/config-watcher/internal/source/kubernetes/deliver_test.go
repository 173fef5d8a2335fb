package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// fixture is a source whose watchers the test plays.
type fixture struct {
	*Source
	t      *testing.T
	clock  *testkit.Clock
	events []string
}

func newFixture(t *testing.T, saved *lastgood.Dir) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	var err error
	f.Source, err = New(Config{Cluster: "c", API: &rest.Config{Host: "https://127.0.0.1:1"}, Saved: saved, Log: testkit.Logger(t),
		Clock: f.clock})
	if err != nil {
		t.Fatal(err)
	}
	f.Handle(func(_ context.Context, _ string, events []source.Event) {
		for _, e := range events {
			what := "gone"
			if e.Object != nil {
				what = e.Object.Labels["state"]
				if e.Object.Held {
					what = "held"
				}
			}
			f.events = append(f.events, e.Key.String()+" "+what)
		}
	})
	return f
}

// watcher is the one of a kind.
func (f *fixture) watcher(group, name string) *watcher {
	f.t.Helper()
	k := f.kinds[schema.GroupKind{Group: group, Kind: name}]
	w := &watcher{source: f.Source, kind: k, stop: func() {}}
	k.watchers[types.NamespacedName{}] = w
	k.served = served{version: "v1", resource: "x"}
	return w
}

// state is the entry of an object of a kind.
func (w *watcher) state(name, state string) *entry {
	n := types.NamespacedName{Namespace: "apps", Name: name}
	return &entry{name: n, object: &object.Object{Key: w.kind.key(n), Labels: map[string]string{"state": state},
		Digest: [16]byte([]byte(fmt.Sprintf("%-16s", state)))}}
}

// bad is the entry of an object that was refused.
func (w *watcher) bad(name string) *entry {
	n := types.NamespacedName{Namespace: "apps", Name: name}
	e := &entry{name: n, problems: object.Problems{{Object: w.kind.key(n).String(), Reason: "bad"}}}
	if h, ok := hold.OfKey(w.kind.key(n), ""); ok {
		e.hold = &h
	}
	return e
}

// delivered delivers what waits, and compares the events.
func (f *fixture) delivered(want ...string) {
	f.t.Helper()
	f.events = nil
	for lane := range f.lanes {
		if err := f.deliverLane(f.t.Context(), lane); err != nil {
			f.t.Fatal(err)
		}
	}
	if !slices.Equal(f.events, want) {
		f.t.Errorf("delivers %v, want %v", f.events, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestABurstCoalescesAndNothingIsLost(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("", "Service")
	must(t, w.replace([]any{w.state("a", "1"), w.state("b", "1")}, ""))
	f.delivered("Service apps/a 1", "Service apps/b 1")
	for i := range 100 {
		must(t, w.put(w.state("a", fmt.Sprint(i)), false))
	}
	must(t, w.put(w.state("c", "1"), false))
	must(t, w.put(w.state("c", "1"), true))
	f.delivered("Service apps/a 99")
	must(t, w.put(w.state("a", "99"), false)) // its status has changed
	f.delivered()
	must(t, w.replace([]any{w.state("b", "1"), w.state("d", "1")}, ""))
	f.delivered("Service apps/a gone", "Service apps/d 1")
}

// TestAListThatComesDuringDelivery: an object that is not in the list goes, even if its last change is just being
// delivered.
func TestAListThatComesDuringDelivery(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("", "Service")
	must(t, w.put(w.state("a", "1"), false))
	batch := f.take(laneConfig)
	must(t, w.replace(nil, ""))
	if _, err := f.eventsOf(batch); err != nil {
		t.Fatal(err)
	}
	f.delivered("Service apps/a gone")
}

func TestEndpointsOvertakeConfiguration(t *testing.T) {
	f := newFixture(t, nil)
	services, slices := f.watcher("", "Service"), f.watcher(kinds.GroupDiscovery, "EndpointSlice")
	for i := range maxEvents + 1 {
		must(t, services.put(services.state(fmt.Sprintf("s-%04d", i), "1"), false))
	}
	calls := 0
	f.Handle(func(_ context.Context, _ string, events []source.Event) {
		if calls++; calls == 1 {
			must(t, slices.put(slices.state("e", "1"), false)) // while the first batch is delivered
		}
		if first := events[0].Key.Kind == "EndpointSlice"; first != (calls == 2) || len(events) > maxEvents {
			t.Errorf("call %d has %d events, the first of %s", calls, len(events), events[0].Key)
		}
	})
	must(t, f.deliverLane(t.Context(), laneConfig))
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

func TestARefusedObjectKeepsItsLastVersion(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher(kinds.GroupSecurity, "PeerAuthentication")
	must(t, w.put(w.state("a", "good"), false))
	f.delivered("PeerAuthentication apps/a good")
	must(t, w.put(w.bad("a"), false))
	must(t, w.put(w.bad("b"), false))
	f.delivered("PeerAuthentication apps/b held")
	if st := f.Status(); len(st.Problems) != 3 || st.Held != 1 || st.Objects != 2 {
		t.Errorf("%d problems, %d held, %d objects", len(st.Problems), st.Held, st.Objects)
	}
	must(t, w.put(w.bad("b"), true))
	must(t, w.put(w.state("a", "better"), false))
	f.delivered("PeerAuthentication apps/a better", "PeerAuthentication apps/b gone")
	if st := f.Status(); len(st.Problems) != 0 || st.Held != 0 || st.Objects != 1 {
		t.Errorf("%d problems, %d held, %d objects", len(st.Problems), st.Held, st.Objects)
	}
}

// TestAKindIsGoneOnlyWhenItIsCertain: answers without a kind count only if there are several over some time and its own
// watch fails too.
func TestAKindIsGoneOnlyWhenItIsCertain(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher(kinds.GroupNetworking, "VirtualService")
	must(t, w.replace([]any{w.state("a", "1")}, ""))
	f.delivered("VirtualService apps/a 1")
	missing := func(after time.Duration) (unsure bool) {
		f.clock.Advance(after)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.missing(w.kind, nil)
	}
	for range goneAnswers {
		if !missing(goneAfter) {
			t.Fatal("it is gone although its watch works")
		}
	}
	w.failure = &failure{err: apierrors.NewNotFound(schema.GroupResource{}, "")}
	w.kind.absent = 0
	for i, after := range []time.Duration{0, goneAfter / 4, goneAfter / 4} {
		if !missing(after) {
			t.Fatalf("it is gone after answer %d", i)
		}
	}
	f.delivered()
	if missing(goneAfter) {
		t.Fatal("it is not gone")
	}
	f.delivered("VirtualService apps/a gone")
}

func TestFirstAbsence(t *testing.T) {
	f := newFixture(t, nil)
	k := f.kinds[schema.GroupKind{Group: kinds.GroupNetworking, Kind: "Sidecar"}]
	if !f.missing(k, nil) || k.settled {
		t.Error("one answer without a kind is enough")
	}
	if f.missing(k, nil) || !k.settled {
		t.Error("two answers without a kind are not enough")
	}
}

// TestRestoredObjectsGiveWay: what an earlier run has saved counts until the API server has answered.
func TestRestoredObjectsGiveWay(t *testing.T) {
	saved := lastgood.New(lastgood.Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: testkit.NewClock(time.Now())})
	before := newFixture(t, saved)
	w := before.watcher("", "Namespace")
	for _, name := range []string{"a", "b"} {
		e := w.state(name, "saved")
		e.name.Namespace, e.object.Key.Namespace, e.object.APIVersion = "", "", "v1"
		must(t, w.put(e, false))
	}
	w.listed, w.delivered, w.kind.settled = true, true, true
	before.delivered("Namespace a saved", "Namespace b saved")
	before.saveAll()
	before.markRead()

	f := newFixture(t, saved)
	f.started = f.clock.Now()
	f.gate.lost, f.gate.confirmed = &failure{err: errors.New("away")}, true
	f.clock.Advance(restoreAway)
	must(t, f.restoreLate())
	f.delivered("Namespace a saved", "Namespace b saved")
	f.settle(nil, nil, f.restoring)
	// What counts is when all was last followed, not when an object was last saved.
	if st := f.Status(); !st.LastGood.Equal(before.clock.Now()) || st.Synced || !st.Settled() {
		t.Errorf("last good %v, synced %v", st.LastGood, st.Synced)
	}
	w = f.watcher("", "Namespace")
	e := w.state("a", "new")
	e.name.Namespace, e.object.Key.Namespace = "", ""
	must(t, w.replace([]any{e}, ""))
	f.delivered("Namespace a new", "Namespace b gone")
}

func TestStatusNamesWhatIsForbidden(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher(kinds.GroupNetworking, "Gateway")
	f.asked(t.Context(), w, false, apierrors.NewForbidden(schema.GroupResource{Group: "networking.istio.io", Resource: "gateways"}, "",
		errors.New("no right")))
	f.asked(t.Context(), w, true, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no right")))
	f.asked(t.Context(), w, false, nil) // a list that succeeds does not prove that a watch would
	st := f.Status()
	if st.Degraded == nil || !strings.Contains(st.Degraded.Error(), "Gateway.networking.istio.io cannot be read since 2030-01-01T00:00:00Z") {
		t.Errorf("%v", st.Degraded)
	}
	for _, k := range st.Kinds {
		if (k.Degraded != nil) != (k.Name == "Gateway.networking.istio.io") {
			t.Errorf("%s: %v", k.Name, k.Degraded)
		}
	}
	f.asked(t.Context(), w, true, nil)
	if st := f.Status(); st.Degraded != nil {
		t.Errorf("%v", st.Degraded)
	}
}

// TestLastGoodVersionIsOfTheSameObject: the last good version of an object that was deleted does not come back with a
// refused one of its name, even if nothing was delivered in between.
func TestLastGoodVersionIsOfTheSameObject(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("networking.istio.io", "Gateway")
	good, bad := w.state("a", "good"), w.bad("a")
	good.object.UID, bad.uid = "uid-1", "uid-1"
	must(t, w.put(good, false))
	f.delivered("Gateway apps/a good")
	must(t, w.put(bad, false))
	f.delivered()
	again := w.bad("a")
	again.uid = "uid-2"
	must(t, w.put(bad, true))
	must(t, w.put(again, false))
	f.delivered("Gateway apps/a gone")
}

// TestVersionsTellWhatWasDelivered: a resource version appears when all changes up to it have been delivered, of a
// kind, and of each object that is watched alone.
func TestVersionsTellWhatWasDelivered(t *testing.T) {
	f := newFixture(t, nil)
	services, secret := f.watcher("", "Service"), f.watcher("", kindSecret)
	delete(secret.kind.watchers, types.NamespacedName{})
	secret.name = types.NamespacedName{Namespace: "apps", Name: "cert"}
	secret.kind.watchers[secret.name] = secret
	// during happens after deliver has looked for changes and before it has delivered them.
	round := func(during func()) {
		watchers, restored := f.listedWatchers()
		during()
		for lane := range f.lanes {
			must(t, f.deliverLane(t.Context(), lane))
		}
		f.settle(nil, watchers, restored)
	}
	versions := func(service, cert string) {
		t.Helper()
		if got := f.Status().Versions; got["Service"] != service || got["Secret apps/cert"] != cert || len(got) != 2 {
			t.Errorf("versions are %v, want %q and %q", got, service, cert)
		}
	}
	changed := func(w *watcher, name, version string) *entry {
		e := w.state(name, version)
		e.version = version
		return e
	}
	must(t, services.replace([]any{changed(services, "a", "3")}, "5"))
	versions("", "")
	round(func() { must(t, services.put(changed(services, "a", "7"), false)) })
	versions("5", "")
	must(t, secret.put(changed(secret, "cert", "6"), false))
	must(t, services.put(changed(services, "a", "8"), true))
	versions("5", "")
	round(func() {})
	versions("8", "6")
}
