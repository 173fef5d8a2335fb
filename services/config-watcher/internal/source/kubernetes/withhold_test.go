package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// in moves an entry into a namespace; "" is that of a kind without namespaces.
func (e *entry) in(namespace string) *entry {
	e.name.Namespace = namespace
	if e.object != nil {
		e.object.Key.Namespace = namespace
	}
	return e
}

// some are n objects of a namespace, in a state.
func (w *watcher) some(n int, namespace, state string) (out []any) {
	for i := range n {
		out = append(out, w.state(fmt.Sprintf("x%02d", i), state).in(namespace))
	}
	return out
}

// namespaces are Namespaces of names.
func (w *watcher) namespaces(uid string, names ...string) (out []any) {
	for _, name := range names {
		e := w.state(name, "ns").in("")
		e.object.UID, e.object.APIVersion = uid, "v1"
		out = append(out, e)
	}
	return out
}

// quietly delivers what waits, and returns how many objects came or changed, and how many are gone.
func (f *fixture) quietly() (there, gone int) {
	f.t.Helper()
	f.events = nil
	for lane := range f.lanes {
		must(f.t, f.deliverLane(f.t.Context(), lane))
	}
	for _, e := range f.events {
		if strings.HasSuffix(e, " gone") {
			gone++
		} else {
			there++
		}
	}
	return there, gone
}

// moves delivers what waits, and compares the numbers of quietly and of what is withheld then.
func (f *fixture) moves(what string, there, gone, held int) {
	f.t.Helper()
	gotThere, gotGone := f.quietly()
	n := 0
	for _, w := range f.Status().Withheld {
		n += w.Objects
	}
	if gotThere != there || gotGone != gone || n != held {
		f.t.Errorf("%s: %d changed, %d gone, %d withheld; want %d, %d, %d", what, gotThere, gotGone, n, there, gone, held)
	}
}

// TestAListThatLacksMuchIsWithheld: what it lacks stays, what it has counts, a second list confirms it.
func TestAListThatLacksMuchIsWithheld(t *testing.T) {
	for _, of := range []struct{ group, kind string }{
		{"", "Service"}, {"", "Pod"}, {kinds.GroupDiscovery, "EndpointSlice"}, {kinds.GroupNetworking, "ServiceEntry"},
		{kinds.GroupNetworking, "WorkloadEntry"},
	} {
		t.Run(of.kind, func(t *testing.T) {
			f := newFixture(t, nil)
			w := f.watcher(of.group, of.kind)
			must(t, w.replace(w.some(20, "apps", "1"), "5"))
			f.moves("first list", 20, 0, 0)
			must(t, w.replace(append(w.some(3, "apps", "2"), w.state("new", "1")), "6"))
			f.moves("second list", 4, 0, 17)
			st := f.Status().Withheld
			if len(st) != 1 || st[0].What != w.kind.String() || st[0].InForce != 21 || st[0].Since != f.clock.Now() ||
				st[0].Until != f.clock.Now().Add(withheld.Wait) {
				t.Errorf("withheld is %+v", st)
			}
			must(t, w.put(w.state("x05", "2"), false))
			f.moves("one is back", 1, 0, 16)
			must(t, w.put(w.state("x06", "1"), true))
			f.moves("one is deleted", 0, 1, 15)
			f.clock.Advance(withheld.Wait - 1)
			list := append(w.some(3, "apps", "2"), w.state("new", "1"), w.state("x05", "2"))
			must(t, w.replace(list, "7"))
			f.moves("too early", 0, 0, 15)
			f.clock.Advance(1)
			must(t, w.replace(list, "8"))
			f.moves("confirmed", 0, 15, 0)
		})
	}
}

// TestNewObjectsAreNoReasonToMissOthersLess: a list of another cluster, which is as large.
func TestNewObjectsAreNoReasonToMissOthersLess(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("", "Service")
	must(t, w.replace(w.some(20, "apps", "1"), "5"))
	f.moves("first list", 20, 0, 0)
	must(t, w.replace(w.some(20, "other", "1"), "5"))
	f.moves("another cluster's", 20, 0, 20)
}

// TestWatchEventsAreNeverWithheld: they are what somebody did.
func TestWatchEventsAreNeverWithheld(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("", "Service")
	must(t, w.replace(w.some(20, "apps", "1"), "5"))
	f.moves("first list", 20, 0, 0)
	for _, o := range w.some(20, "apps", "1") {
		must(t, w.put(o, true))
	}
	f.moves("events", 0, 20, 0)
}

func TestAcceptEndsTheWait(t *testing.T) {
	f := newFixture(t, nil)
	services, pods := f.watcher("", "Service"), f.watcher("", "Pod")
	for _, w := range []*watcher{services, pods} {
		must(t, w.replace(w.some(20, "apps", "1"), "5"))
	}
	f.moves("first lists", 40, 0, 0)
	if n := f.Accept(); n != 0 {
		t.Errorf("accepts %d", n)
	}
	for _, w := range []*watcher{services, pods} {
		must(t, w.replace(nil, "6"))
	}
	f.moves("empty lists", 0, 0, 40)
	if n := f.Accept(); n != 40 {
		t.Errorf("accepts %d", n)
	}
	f.moves("accepted", 0, 40, 0)
}

// TestANamespaceThatIsDeletedTakesItsObjectsAlong: by an event, by a later list of the same cluster, or while it is
// being deleted; not by a list of other data.
func TestANamespaceThatIsDeletedTakesItsObjectsAlong(t *testing.T) {
	other := "default"
	for name, tc := range map[string]struct {
		after      func(t *testing.T, namespaces *watcher)
		gone, held int
	}{
		"event": {func(t *testing.T, n *watcher) { must(t, n.put(n.namespaces("u", "apps")[0], true)) }, 51, 0},
		"ending": {func(t *testing.T, n *watcher) {
			e := n.namespaces("u", "apps")[0].(*entry)
			e.ending = true
			must(t, n.put(e, false))
		}, 50, 0},
		"later list": {func(t *testing.T, n *watcher) { must(t, n.replace(n.namespaces("u", kubeSystem, other), "9")) }, 51, 0},
		"older list": {func(t *testing.T, n *watcher) { must(t, n.replace(n.namespaces("u", kubeSystem, other), "3")) }, 0, 51},
		"other cluster, listed twice": {func(t *testing.T, n *watcher) {
			must(t, n.replace(n.namespaces("v", kubeSystem, other), "9"))
			must(t, n.replace(n.namespaces("v", kubeSystem, other), "9"))
		}, 0, 51},
		"other cluster":  {func(t *testing.T, n *watcher) { must(t, n.replace(n.namespaces("v", kubeSystem, other), "9")) }, 0, 51},
		"without system": {func(t *testing.T, n *watcher) { must(t, n.replace(n.namespaces("u", other), "9")) }, 0, 52},
		"empty":          {func(t *testing.T, n *watcher) { must(t, n.replace(nil, "9")) }, 0, 53},
		"most of them":   {func(t *testing.T, n *watcher) { must(t, n.replace(n.namespaces("u", kubeSystem), "9")) }, 0, 52},
	} {
		for order := range 2 {
			t.Run(fmt.Sprint(name, order), func(t *testing.T) {
				f := newFixture(t, nil)
				namespaces, services := f.watcher("", "Namespace"), f.watcher("", "Service")
				must(t, namespaces.replace(namespaces.namespaces("u", kubeSystem, other, "apps"), "5"))
				must(t, services.replace(append(services.some(50, "apps", "1"), services.some(10, other, "1")...), "5"))
				f.quietly()
				steps := []func(){func() { tc.after(t, namespaces) }, func() { must(t, services.replace(services.some(10, other, "1"), "9")) }}
				steps[order]()
				_, gone := f.quietly()
				steps[1-order]()
				_, left := f.quietly()
				held := 0
				for _, w := range f.Status().Withheld {
					held += w.Objects
				}
				if gone+left != tc.gone || held != tc.held {
					t.Errorf("%d gone, %d withheld; want %d, %d", gone+left, held, tc.gone, tc.held)
				}
			})
		}
	}
}

// TestAKindThatVanishesIsWithheld: the objects of a CustomResourceDefinition stay until a later answer lacks it too.
func TestAKindThatVanishesIsWithheld(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher(kinds.GroupNetworking, "ServiceEntry")
	must(t, w.replace(w.some(20, "apps", "1"), "5"))
	f.moves("first list", 20, 0, 0)
	w.failure = &failure{err: apierrors.NewNotFound(schema.GroupResource{}, "")}
	missing := func(after time.Duration) bool {
		f.clock.Advance(after)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.missing(w.kind, nil)
	}
	for range goneAnswers + 1 {
		if !missing(goneAfter / 2) {
			t.Fatal("it is certain too early")
		}
	}
	f.moves("gone", 0, 0, 20)
	if missing(withheld.Wait) {
		t.Error("it is not certain")
	}
	f.moves("confirmed", 0, 20, 0)
}

// TestWithheldObjectsOutliveARestart: what was in force when the last run ended is compared with the first list.
func TestWithheldObjectsOutliveARestart(t *testing.T) {
	saved := lastgood.New(lastgood.Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: testkit.NewClock(time.Now())})
	before := newFixture(t, saved)
	list := func(f *fixture, n int, version string) *watcher {
		w := f.watcher("", "Namespace")
		var all []any
		for i := range n {
			all = append(all, w.namespaces("u", fmt.Sprintf("n%02d", i))...)
		}
		must(t, w.replace(all, version))
		return w
	}
	w := list(before, 20, "5")
	before.moves("first list", 20, 0, 0)
	w.delivered, w.kind.settled = true, true
	before.saveAll()

	for name, tc := range map[string]struct{ listed, there, gone, held int }{
		"all are there": {20, 20, 0, 0}, "few are missing": {15, 15, 0, 0}, "most are missing": {5, 20, 0, 15},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, saved)
			list(f, tc.listed, "9")
			f.moves("after the restart", tc.there, tc.gone, tc.held)
			f.clock.Advance(withheld.Wait)
			list(f, tc.listed, "11")
			f.moves("second list", 0, tc.held, 0)
		})
	}
}

// TestTheSecondListIsAskedFor: when it is due, the watch ends as if its resource version had expired, which makes the
// reflector list; a watch that would be opened meanwhile is refused for the same reason.
func TestTheSecondListIsAskedFor(t *testing.T) {
	f := newFixture(t, nil)
	w := f.watcher("", "Service")
	must(t, w.replace(w.some(20, "apps", "1"), "5"))
	must(t, w.replace(nil, "6"))
	if n, _ := w.kind.guard.Held(); n != 20 {
		t.Fatalf("%d are withheld", n)
	}
	from := watch.NewFake()
	c := &converted{from: from, kind: w.kind, out: make(chan watch.Event), stop: make(chan struct{}), expired: make(chan struct{})}
	f.watching(w, c)
	go c.run()
	if next := f.askAgain(f.clock.Now()); next != f.clock.Now().Add(withheld.Wait) || w.mustList() {
		t.Errorf("the second list is asked for at %s", next)
	}
	f.clock.Advance(withheld.Wait)
	if next := f.askAgain(f.clock.Now()); !next.IsZero() || !w.mustList() {
		t.Errorf("the second list is asked for at %s", next)
	}
	e := <-c.ResultChan()
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("the watch ends with %v", e)
	}
	c.Stop()
	if next := f.askAgain(f.clock.Now()); !next.IsZero() {
		t.Errorf("it is asked for again at %s", next)
	}
	l := &listWatch{source: f.Source, watcher: w}
	if _, err := l.WatchWithContext(t.Context(), metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch may be opened: %v", err)
	}
	must(t, w.replace(nil, "7"))
	if n, _ := w.kind.guard.Held(); n != 0 || w.mustList() {
		t.Errorf("%d are withheld", n)
	}
}
