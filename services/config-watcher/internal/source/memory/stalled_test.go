package memory

import (
	"context"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
)

// TestAStalledDiskStopsNoReader: while the flush of a write does not return, as on a disk that hangs, readers get the
// state before it; the write is seen when it is on disk.
func TestAStalledDiskStopsNoReader(t *testing.T) {
	stalled, release := make(chan struct{}, 1), make(chan struct{})
	stall := false
	h := startConfig(t, Config{Dir: t.TempDir(), Clock: testkit.NewClock(time.Unix(1000, 0)),
		FS: fileio.FS{Fault: func(step fileio.Step, _ string) error {
			if stall && step == fileio.StepSync {
				stalled <- struct{}{}
				<-release
			}
			return nil
		}}})
	h.apply(ns("a", "1"))
	stall = true
	written := make(chan error, 1)
	second := writes(t, ns("a", "2"))
	go func() {
		_, err := h.Write(context.Background(), second, false)
		written <- err
	}()
	<-stalled
	read := make(chan struct{})
	go func() {
		defer close(read)
		if it, err := h.Get(key("a")); err != nil || it.object.Labels["v"] != "1" {
			t.Errorf("Get: %+v, %v", it, err)
		}
		if list, err := h.List("", ""); err != nil || len(list) != 1 {
			t.Errorf("List: %v, %v", list, err)
		}
		if st := h.Status(); !st.Synced || st.Objects != 1 || !h.HasSynced() || h.Refused() != 0 {
			t.Errorf("Status: %+v", st)
		}
		_, w, err := h.Watch("", "")
		if err != nil {
			t.Errorf("Watch: %v", err)
			return
		}
		w.Stop()
	}()
	select {
	case <-read:
	case <-time.After(patience):
		t.Error("readers wait for the disk")
	}
	close(release)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	<-read
	if it, err := h.Get(key("a")); err != nil || it.object.Labels["v"] != "2" {
		t.Errorf("after the flush: %+v, %v", it, err)
	}
}
