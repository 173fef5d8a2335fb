package notify_test

import (
	"testing"

	"fairlead.dev/pkg/notify"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestNotifyClosesTheChannelsGivenOutBefore(t *testing.T) {
	var n notify.Notifier
	n.Notify()
	first, second := n.Changed(), n.Changed()
	if closed(first) || closed(second) {
		t.Fatal("a channel is closed before the change")
	}
	n.Notify()
	if !closed(first) || !closed(second) || closed(n.Changed()) {
		t.Errorf("after the change, closed: %t and %t, want both; the next one's: %t", closed(first), closed(second), closed(n.Changed()))
	}
}

func TestWakeLeavesOneToken(t *testing.T) {
	waiting := make(chan struct{}, 1)
	notify.Wake(waiting)
	notify.Wake(waiting)
	if <-waiting; len(waiting) != 0 {
		t.Error("a second token is in the channel")
	}
}
