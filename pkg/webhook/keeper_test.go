package webhook_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
)

// object is what the Keeper of a test keeps.
type object struct {
	t        *testing.T
	clock    *testkit.Clock
	identity *testkit.Static
	registry *prometheus.Registry
	log      testkit.Buffer
	keeper   *webhook.Keeper
	// calls gets the roots of each call of Keep, which then returns what results has.
	calls   chan string
	results chan error
	// stop ends the Keeper's Run, which must return nil.
	stop func()
}

func newObject(t *testing.T) *object {
	o := &object{
		t: t, clock: testkit.NewClock(time.Unix(0, 0)), identity: testkit.NewStatic(&tlsconf.Material{RootsPEM: []byte("first")}),
		registry: prometheus.NewRegistry(), calls: make(chan string), results: make(chan error),
	}
	o.keeper = webhook.NewKeeper(webhook.KeeperConfig{
		Metrics: "test", Name: "hook", Identity: o.identity, Log: slog.New(slog.NewTextHandler(&o.log, nil)), Registerer: o.registry,
		Clock: o.clock,
		Keep: func(ctx context.Context, bundle *tlsconf.Material) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case o.calls <- string(bundle.RootsPEM):
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-o.results:
				return err
			}
		},
	})
	o.stop = testkit.Background(t, o.keeper.Run)
	return o
}

// begun waits for a call of Keep, which goes on when it gets its result.
func (o *object) begun(roots string) {
	o.t.Helper()
	select {
	case got := <-o.calls:
		if got != roots {
			o.t.Fatalf("kept with %q, not with %q", got, roots)
		}
	case <-time.After(testkit.Patience):
		o.t.Fatal("nothing was kept")
	}
}

// kept waits for a call of Keep, lets it return err, and waits until the Keeper waits for the next event, for as long
// as next.
func (o *object) kept(roots string, err error, next time.Duration) {
	o.t.Helper()
	o.begun(roots)
	o.results <- err
	o.clock.WaitFor(o.t, 1)
	if in, _ := o.clock.NextIn(); in != next {
		o.t.Fatalf("after %v it waits for %s, not for %s", err, in, next)
	}
}

// metrics returns the gauge and the counter.
func (o *object) metrics() (current, failures float64) {
	o.t.Helper()
	families, err := o.registry.Gather()
	if err != nil {
		o.t.Fatal(err)
	}
	for _, f := range families {
		switch m := f.GetMetric()[0]; f.GetName() {
		case "test_webhook_configuration_current":
			current = m.GetGauge().GetValue()
		case "test_webhook_configuration_failures_total":
			failures = m.GetCounter().GetValue()
		}
	}
	return current, failures
}

func TestKeeperKeepsAfterEachEvent(t *testing.T) {
	o := newObject(t)
	o.kept("first", nil, webhook.CheckInterval)
	o.identity.Set(&tlsconf.Material{RootsPEM: []byte("second")})
	o.kept("second", nil, webhook.CheckInterval)
	o.keeper.Wake()
	o.kept("second", nil, webhook.CheckInterval)
	o.clock.Advance(webhook.CheckInterval)
	o.kept("second", errors.New("refused"), webhook.RetryInterval)
	o.clock.Advance(webhook.RetryInterval)
	o.kept("second", nil, webhook.CheckInterval)
}

func TestKeeperMissesNoEventOfACallThatRuns(t *testing.T) {
	for name, event := range map[string]func(*object){
		"identity": func(o *object) { o.identity.Set(&tlsconf.Material{RootsPEM: []byte("second")}) },
		"object":   func(o *object) { o.keeper.Wake() },
	} {
		t.Run(name, func(t *testing.T) {
			o := newObject(t)
			o.begun("first")
			event(o)
			o.results <- nil
			select {
			case <-o.calls:
			case <-time.After(testkit.Patience):
				t.Fatal("what changed during a call is not kept")
			}
		})
	}
}

func TestKeeperTellsOfAProblemOnceAndOfItsEnd(t *testing.T) {
	o := newObject(t)
	for i, err := range []error{errors.New("no right"), errors.New("no right"), errors.New("gone"), nil, nil, errors.New("gone")} {
		wait := webhook.CheckInterval
		if err != nil {
			wait = webhook.RetryInterval
		}
		o.kept("first", err, wait)
		if current, _ := o.metrics(); (current == 1) != (err == nil) {
			t.Errorf("after call %d with %v the gauge is %v", i, err, current)
		}
		o.clock.Advance(wait)
	}
	o.begun("first") // the report of the call before is made
	if _, failures := o.metrics(); failures != 4 {
		t.Errorf("%v failures counted", failures)
	}
	for text, times := range map[string]int{"no right": 1, "gone": 2, "is kept again": 1, "name=hook": 4} {
		if n := strings.Count(o.log.String(), text); n != times {
			t.Errorf("%q is %d times in the log, not %d:\n%s", text, n, times, o.log.String())
		}
	}
}

// An identity without roots is a problem as any other, and Keep is not called without a bundle.
func TestKeeperWaitsForATrustBundle(t *testing.T) {
	var log testkit.Buffer
	clock := testkit.NewClock(time.Unix(0, 0))
	keeper := webhook.NewKeeper(webhook.KeeperConfig{
		Metrics: "test", Name: "hook", Identity: none{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(),
		Clock: clock,
		Keep: func(context.Context, *tlsconf.Material) error {
			t.Error("Keep is called without a bundle")
			return nil
		},
	})
	testkit.Background(t, keeper.Run)
	clock.WaitFor(t, 1)
	if in, _ := clock.NextIn(); in != webhook.RetryInterval || !strings.Contains(log.String(), "no roots yet") {
		t.Errorf("waits for %s; log: %s", in, log.String())
	}
}

// none is an identity that has not got its roots.
type none struct{}

func (none) Current() (*tlsconf.Material, error) { return nil, errors.New("no roots yet") }
func (none) Changed() <-chan struct{}            { return nil }

// A shutdown is no failure of what is kept.
func TestKeeperEndsWithoutAReport(t *testing.T) {
	o := newObject(t)
	o.begun("first")
	o.stop()
	if _, failures := o.metrics(); failures != 0 || o.log.String() != "" {
		t.Errorf("%v failures counted, told: %s", failures, o.log.String())
	}
}
