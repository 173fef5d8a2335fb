package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
)

// recorder is a writer that keeps what it was given. It answers with an error while fail is set, and blocks while gate
// is not nil.
type recorder struct {
	gate chan struct{}

	mu      sync.Mutex
	fail    error
	written []string
}

func (r *recorder) Write(ctx context.Context, to Target, s *Status) (bool, error) {
	if r.gate != nil {
		select {
		case <-r.gate:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return false, r.fail
	}
	r.written = append(r.written, fmt.Sprintf("%s/%d", to.Key.Name, s.Generation))
	return true, nil
}

func (r *recorder) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.written...)
}

func newTestDispatcher(t *testing.T, w Writer) (*Dispatcher, *Metrics) {
	m := NewMetrics(prometheus.NewRegistry())
	d := NewDispatcher(DispatcherConfig{Name: "test", Writer: w, Workers: 1, Metrics: m, Log: testkit.Logger(t)})
	m.Add(d)
	return d, m
}

func run(t *testing.T, d *Dispatcher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func put(d *Dispatcher, name string, generation int64) {
	d.Put(Target{Key: object.Key{Kind: "VirtualService", Name: name}}, &Status{Generation: generation})
}

// TestNewestStatusIsWritten: a status that is replaced while another is being written is never written.
func TestNewestStatusIsWritten(t *testing.T) {
	w := &recorder{gate: make(chan struct{})}
	d, m := newTestDispatcher(t, w)
	run(t, d)
	put(d, "first", 1)
	testkit.Eventually(t, testkit.Patience, func() error {
		if n, runs := d.Queued(), testutil.ToFloat64(m.writing.WithLabelValues("test")); n != 0 || runs != 1 {
			return fmt.Errorf("%d wait, writing %v", n, runs)
		}
		return nil
	})
	for g := range int64(5) {
		put(d, "second", g+1)
	}
	put(d, "gone", 1)
	d.Forget(object.Key{Kind: "VirtualService", Name: "gone"})
	close(w.gate)
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := fmt.Sprint(w.list()); got != "[first/1 second/5]" || d.Queued() != 0 {
			return errors.New(got)
		}
		return nil
	})
	if n := testutil.ToFloat64(m.writes.WithLabelValues("test", "written")); n != 2 {
		t.Errorf("%v writes counted", n)
	}
}

// TestFailedWriteIsRepeated: a failure is reported until the write has succeeded.
func TestFailedWriteIsRepeated(t *testing.T) {
	w := &recorder{fail: errors.New("not allowed")}
	d, _ := newTestDispatcher(t, w)
	run(t, d)
	put(d, "a", 1)
	testkit.Eventually(t, testkit.Patience, func() error {
		var failure *WriteError
		if err := d.Failure(); !errors.As(err, &failure) || failure.Objects != 1 || failure.Object.Name != "a" {
			return fmt.Errorf("failure %w", err)
		}
		return nil
	})
	w.mu.Lock()
	w.fail = nil
	w.mu.Unlock()
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := fmt.Sprint(w.list()); got != "[a/1]" || d.Failure() != nil {
			return fmt.Errorf("%s, failure %w", got, d.Failure())
		}
		return nil
	})
}

// TestNextTermWritesEverything: what was put while another replica wrote is written when this one begins.
func TestNextTermWritesEverything(t *testing.T) {
	w := &recorder{}
	d, _ := newTestDispatcher(t, w)
	put(d, "a", 1)
	put(d, "b", 1)
	for n := 1; n <= 2; n++ {
		stop := run(t, d)
		testkit.Eventually(t, testkit.Patience, func() error {
			if got := w.list(); len(got) != 2*n {
				return fmt.Errorf("term %d: %v", n, got)
			}
			return nil
		})
		stop()
	}
}

// TestDispatcherIsBounded: beyond the bound it takes no further object, and still takes news of those it has.
func TestDispatcherIsBounded(t *testing.T) {
	d, _ := newTestDispatcher(t, &recorder{})
	for i := range maxStatuses {
		put(d, fmt.Sprint(i), 1)
	}
	if d.Put(Target{Key: object.Key{Kind: "VirtualService", Name: "more"}}, &Status{}) {
		t.Error("it has taken more than it may keep")
	}
	if !d.Put(Target{Key: object.Key{Kind: "VirtualService", Name: "1"}}, &Status{Generation: 2}) {
		t.Error("it has refused the news of an object that it has")
	}
}

// TestNamespacesTakeTurns: many statuses of one namespace do not hold up another's.
func TestNamespacesTakeTurns(t *testing.T) {
	w := &recorder{}
	d, _ := newTestDispatcher(t, w)
	for i := range 100 {
		d.Put(Target{Key: object.Key{Kind: "HTTPRoute", Namespace: "many", Name: fmt.Sprint(i)}}, &Status{})
	}
	d.Put(Target{Key: object.Key{Kind: "HTTPRoute", Namespace: "few", Name: "one"}}, &Status{})
	run(t, d)
	testkit.Eventually(t, 10*time.Second, func() error {
		if n := len(w.list()); n != 101 {
			return fmt.Errorf("%d statuses are written", n)
		}
		return nil
	})
	if at := slices.Index(w.list(), "one/0"); at > 1 {
		t.Errorf("the other namespace's status is written after %d of the first", at)
	}
}
