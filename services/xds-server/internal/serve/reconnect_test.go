package serve_test

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func (r *fixture) streams(want int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if n := r.ADS.Streams(); n != want {
			return fmt.Errorf("%d streams, want %d", n, want)
		}
		return nil
	})
}

func movedAway(t *testing.T, c *deltaClient) {
	t.Helper()
	c.askedToReconnect("more proxies than the others")
}

// Reconnect ends the oldest streams, no more than requested. Young streams and streams that wait for something stay.
func TestReconnectTakesTheOldestStreamsThatWaitForNothing(t *testing.T) {
	r := start(t, basicMesh()...)
	if n := r.ADS.Reconnect(10); n != 0 {
		t.Fatalf("%d of no streams moved", n)
	}
	unconfigured := r.delta("unconfigured", "default")
	unconfigured.subscribe(cds, "*")
	waiting := unconfigured.next() // not acknowledged
	silent := r.delta("silent", "default")
	r.streams(2)
	r.clock.Advance(time.Second)
	oldest := r.delta("oldest", "default")
	oldest.connectAll()
	r.acked("oldest")
	r.clock.Advance(time.Second)
	older := r.delta("older", "default")
	older.connectAll()
	r.acked("older")
	r.clock.Advance(time.Second)
	if n := r.ADS.Reconnect(10); n != 0 {
		t.Errorf("%d young streams moved", n)
	}
	r.clock.Advance(10 * time.Second)
	young := r.delta("young", "default")
	young.connectAll()
	r.acked("young")

	if n := r.ADS.Reconnect(1); n != 1 {
		t.Errorf("%d moved, want 1", n)
	}
	movedAway(t, oldest)
	r.streams(4)
	if n := r.ADS.Reconnect(10); n != 1 {
		t.Errorf("%d moved, want the one other", n)
	}
	movedAway(t, older)
	r.streams(3)

	// When its configuration is acknowledged, the stream can be ended.
	unconfigured.ack(waiting)
	r.acked("unconfigured")
	if n := r.ADS.Reconnect(10); n != 1 {
		t.Errorf("%d moved, want 1", n)
	}
	movedAway(t, unconfigured)
	r.streams(2)

	for _, c := range []*deltaClient{young, silent} {
		select {
		case err := <-c.err:
			t.Errorf("moved too: %v", err)
		default:
		}
	}
}

func TestAcceptsOnlyWithConfigurationAndUntilDrained(t *testing.T) {
	r := start(t)
	if r.ADS.Accepting() {
		t.Error("without configuration")
	}
	r.edit(basicMesh()...)
	if !r.ADS.Accepting() {
		t.Error("not with configuration")
	}
	r.ADS.Drain()
	if r.ADS.Accepting() {
		t.Error("while draining")
	}
}
