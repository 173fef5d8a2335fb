package testkit_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestClockFiresWhatIsDue(t *testing.T) {
	c := testkit.NewClock(epoch)
	soon, late := c.After(time.Second), c.After(time.Minute)
	stopped := c.NewTimer(time.Second)
	if !stopped.Stop() {
		t.Error("Stop of a running timer said it was not running")
	}
	if n := c.Waiters(); n != 2 {
		t.Errorf("%d timers running, want 2", n)
	}
	c.Advance(time.Second)
	select {
	case at := <-soon:
		if !at.Equal(epoch.Add(time.Second)) {
			t.Errorf("fired with %s", at)
		}
	default:
		t.Error("timer that is due did not fire")
	}
	select {
	case <-late:
		t.Error("timer fired early")
	case <-stopped.C():
		t.Error("stopped timer fired")
	default:
	}
	if d, ok := c.NextIn(); !ok || d != 59*time.Second {
		t.Errorf("next timer in %s, want 59s", d)
	}
}

func TestClockReset(t *testing.T) {
	c := testkit.NewClock(epoch)
	timer := c.NewTimer(time.Second)
	c.Advance(time.Second) // fired, not received
	if timer.Reset(time.Second) {
		t.Error("Reset of a fired timer said it was running")
	}
	select {
	case <-timer.C():
		t.Error("stale value after Reset")
	default:
	}
	c.Advance(time.Second)
	<-timer.C()
	if timer.Stop() {
		t.Error("Stop after firing said it was running")
	}
}

func TestClockWaitFor(t *testing.T) {
	c := testkit.NewClock(epoch)
	fired := make(chan struct{})
	go func() {
		<-c.After(time.Hour)
		close(fired)
	}()
	c.WaitFor(t, 1)
	c.Advance(time.Hour)
	<-fired
}

func TestEventually(t *testing.T) {
	var n atomic.Int32
	testkit.Eventually(t, time.Minute, func() error {
		if n.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	f := &fakeT{TB: t}
	func() {
		defer func() { _ = recover() }()
		testkit.Eventually(f, time.Millisecond, func() error { return errors.New("never") })
	}()
	if !f.failed.Load() {
		t.Error("a condition that never holds did not fail the test")
	}
}

func TestGoldenTellsDifferences(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(path, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, path, []byte("one\n"))
	testkit.GoldenStale(t, filepath.Join(dir, "*.txt"), []string{path})

	for name, use := range map[string]func(f *fakeT){
		"different": func(f *fakeT) { testkit.Golden(f, path, []byte("two\n")) },
		"missing":   func(f *fakeT) { testkit.Golden(f, path+"x", nil) },
		"stale":     func(f *fakeT) { testkit.GoldenStale(f, filepath.Join(dir, "*.txt"), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeT{TB: t}
			func() {
				defer func() { _ = recover() }()
				use(f)
			}()
			if !f.failed.Load() {
				t.Error("not noticed")
			}
		})
	}
}

// fakeT records a failure instead of failing.
type fakeT struct {
	testing.TB
	failed atomic.Bool
}

func (f *fakeT) Errorf(string, ...any) { f.failed.Store(true) }
func (f *fakeT) Fatalf(string, ...any) { f.failed.Store(true); panic("fatal") }
func (f *fakeT) Fatal(...any)          { f.failed.Store(true); panic("fatal") }

func TestQuickCountsTheBestAttempt(t *testing.T) {
	n := time.Duration(0)
	testkit.Quick(t, time.Second, func() time.Duration { n++; return (4 - n) * time.Second })
	if n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	f := &fakeT{TB: t}
	testkit.Quick(f, time.Second, func() time.Duration { return 2 * time.Second })
	if !f.failed.Load() {
		t.Error("what is never quick did not fail the test")
	}
}

func TestFreeAddresses(t *testing.T) {
	a, b := testkit.FreeAddress(t), testkit.FreeAddress(t)
	if a == b || !a.Addr().IsLoopback() || !testkit.Twin(a).Addr().IsLoopback() || testkit.Twin(a).Addr() == a.Addr() {
		t.Errorf("%s, %s, %s", a, b, testkit.Twin(a))
	}
	_ = testkit.Listen(t, a).Close()
	testkit.Listen(t, a)
}

func waits(end <-chan struct{}) { <-end }

func TestGoroutines(t *testing.T) {
	stop := make(chan struct{})
	for range 3 {
		go waits(stop)
	}
	counted := func(want int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if n := testkit.Goroutines("nothing.here", "testkit_test.waits"); n != want {
				return fmt.Errorf("%d goroutines, want %d", n, want)
			}
			return nil
		})
	}
	counted(3)
	close(stop)
	counted(0)
}
