package kubernetes

import (
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// TestAStalledDiskStopsNoEndpoints: while the last good version of a refused object cannot be read, because the disk
// hangs, endpoints go on after savedWithin and the status answers. Only the first list of the refused object's kind
// waits.
func TestAStalledDiskStopsNoEndpoints(t *testing.T) {
	stalled, release := make(chan struct{}), make(chan struct{})
	saved := lastgood.New(lastgood.Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: testkit.NewClock(time.Now()),
		FS: fileio.FS{Fault: func(step fileio.Step, _ string) error {
			if step == fileio.StepSync {
				close(stalled)
				<-release
			}
			return nil
		}}})
	f := newFixture(t, saved)
	services, slices := f.watcher("", "Service"), f.watcher("discovery.k8s.io", "EndpointSlice")
	saved.Put("other", []byte("x"))
	flushed, listed := make(chan error, 1), make(chan error, 1)
	go func() { flushed <- saved.Flush() }()
	<-stalled
	go func() { listed <- services.replace([]any{services.bad("a")}, "1") }()
	go func() {
		f.clock.WaitFor(t, 1)
		f.clock.Advance(savedWithin)
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := slices.replace([]any{slices.state("a", "1")}, "1"); err != nil {
			t.Error(err)
		}
		f.delivered("EndpointSlice apps/a 1")
		_ = f.Status()
	}()
	select {
	case <-done:
	case err := <-listed:
		t.Errorf("the list did not wait: %v", err)
	case <-time.After(testkit.Patience):
		t.Error("endpoints wait for the disk")
	}
	close(release)
	must(t, <-flushed)
	must(t, <-listed)
	<-done
	f.delivered()
	if problems := f.Status().Problems; len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
}
