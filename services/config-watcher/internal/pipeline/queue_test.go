package pipeline

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// state is an object of a kind and name, and "name=version" in what a test expects.
func state(kind, name, version string) normalise.Change {
	k := object.Key{Kind: kind, Namespace: "apps", Name: name}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Location: version}}
}

func pod(name, version string) normalise.Change    { return state("Pod", name, version) }
func config(name, version string) normalise.Change { return state("Service", name, version) }

func (b batch) String() string {
	var out []string
	for _, c := range b.changes {
		out = append(out, c.Key.Name+"="+c.Object.Location)
	}
	return fmt.Sprint(out)
}

func TestQueue(t *testing.T) {
	type submissions [][]normalise.Change
	for name, c := range map[string]struct {
		given     submissions
		endpoints string
		ordered   []string // batches of at most 2 changes
	}{
		"an endpoint overtakes configuration": {
			submissions{{config("a", "1")}, {pod("p", "1")}}, "[p=1]", []string{"[a=1]"},
		},
		"the newest state of an endpoint stays, in the place of the first": {
			submissions{{pod("p", "1"), pod("q", "1")}, {pod("p", "2")}}, "[p=2 q=1]", nil,
		},
		"configuration keeps its order, and a batch ends between submissions": {
			submissions{{config("a", "1")}, {config("b", "1"), config("a", "2")}, {config("c", "1"), config("d", "1"), config("e", "1")}},
			"[]", []string{"[a=1]", "[b=1 a=2]", "[c=1 d=1 e=1]"},
		},
		"an endpoint of a mixed submission stays with it": {
			submissions{{config("a", "1"), pod("p", "1")}}, "[]", []string{"[a=1 p=1]"},
		},
		"a newer state replaces that of a mixed submission": {
			submissions{{config("a", "1"), pod("p", "1")}, {pod("p", "2")}}, "[p=2]", []string{"[a=1]"},
		},
		"an older state in the lane does not replace that of a mixed submission": {
			submissions{{pod("p", "1")}, {config("a", "1"), pod("p", "2")}}, "[p=1]", []string{"[a=1 p=2]"},
		},
		"only the states before it are overtaken": {
			submissions{{config("a", "1"), pod("p", "1")}, {pod("p", "2")}, {config("b", "1"), pod("p", "3")}, {config("c", "1")}},
			"[p=2]", []string{"[a=1]", "[b=1 p=3]", "[c=1]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue()
			for _, s := range c.given {
				q.add(t.Context(), time.Time{}, s)
			}
			if q.done() != 0 {
				t.Errorf("done %d before anything is taken", q.done())
			}
			if got := q.takeEndpoints().String(); got != c.endpoints {
				t.Errorf("lane of endpoints %s, want %s", got, c.endpoints)
			}
			var ordered []string
			for q.len() > 0 {
				ordered = append(ordered, q.takeOrdered(2).String())
			}
			if !slices.Equal(ordered, c.ordered) {
				t.Errorf("batches %s, want %s", ordered, c.ordered)
			}
			if q.done() != uint64(len(c.given)) || len(q.overtakable)+len(q.endpoints.List) > 0 {
				t.Errorf("done %d of %d, remembers %v %v", q.done(), len(c.given), q.overtakable, q.endpoints)
			}
		})
	}
}

// TestTheLaneKeepsNoOlderState: an endpoint change and then a newer state in a mixed submission arrive while a revision
// is built; the mixed submission is taken first.
func TestTheLaneKeepsNoOlderState(t *testing.T) {
	q := newQueue()
	q.add(t.Context(), time.Time{}, []normalise.Change{pod("p", "1"), pod("q", "1")})
	q.add(t.Context(), time.Time{}, []normalise.Change{config("a", "1"), pod("p", "2")})
	if got := q.takeOrdered(2).String(); got != "[a=1 p=2]" {
		t.Errorf("batch %s", got)
	}
	if got := q.takeEndpoints().String(); got != "[p=2 q=1]" {
		t.Errorf("lane of endpoints %s after p=2 was taken", got)
	}
}

// overtaker submits an endpoint change after each revision with configuration.
type overtaker struct {
	submit  func(n int)
	pending bool
	deltas  []normalise.Delta
}

func (o *overtaker) Committed(_ *revision.Snapshot, d normalise.Delta, _, _ time.Duration) {
	o.deltas = append(o.deltas, d)
	if o.pending = !o.pending; o.pending {
		o.submit(len(o.deltas))
	}
}
func (*overtaker) Failed(error) {}

// TestAnEndpointWaitsForOneBatch: of a storm of single objects and of a submission that must not be divided, an
// endpoint change waits for the batch under way and for no other.
func TestAnEndpointWaitsForOneBatch(t *testing.T) {
	obs := &overtaker{pending: true}
	p := New(Config{
		Mesh: normalise.New(normalise.Config{}), Log: testkit.Logger(t), Out: revision.NewLog("e", clock.Real()),
		Clock: clock.Real(), Observe: obs,
	})
	obs.submit = func(n int) {
		k := object.Key{Kind: "Pod", Namespace: "apps", Name: "p"}
		o := &object.Object{Key: k, Body: &object.Pod{Ready: n%4 == 0, Addresses: []string{"10.0.0.1"}}, Generation: int64(n)}
		p.Submit(t.Context(), []normalise.Change{{Key: k, Object: o}})
	}
	const storm = 1000
	ctx, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, Ends{Settled: func() bool { return true }}) }()
	if _, err := p.Wait(ctx); err != nil { // for the first revision, which is not cut
		t.Fatal(err)
	}
	for i := range storm {
		p.Submit(ctx, []normalise.Change{namespace(i)})
	}
	var whole []normalise.Change
	for i := range storm {
		whole = append(whole, namespace(storm+i))
	}
	p.Submit(ctx, whole)
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	<-done
	configured := 0
	for i, d := range obs.deltas[1:] {
		endpoint := d.Upserts[0].Key.Kind == resource.KindWorkload
		if endpoint != (i%2 == 1) {
			t.Fatalf("revision %d: an endpoint change %v, after each batch there must be one", i, endpoint)
		}
		if !endpoint {
			configured = max(configured, len(d.Upserts))
			if n := len(d.Upserts); n > maxBatch && n != storm {
				t.Errorf("a batch of %d", n)
			}
		}
	}
	if configured != storm {
		t.Errorf("the submission of %d was divided: the largest batch has %d", storm, configured)
	}
}

func namespace(i int) normalise.Change {
	k := object.Key{Kind: "Namespace", Name: fmt.Sprint("n", i)}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Body: &corev1.Namespace{}}}
}
