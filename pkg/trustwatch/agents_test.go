package trustwatch

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// agents are those of the tests; what they have acknowledged is told as Pod UIDs.
type agents struct {
	notify.Notifier
	mu       sync.Mutex
	all, new []string
}

func (a *agents) ack(uid string) {
	a.mu.Lock()
	a.all, a.new = append(a.all, uid), append(a.new, uid)
	a.mu.Unlock()
	a.Notify()
}

func (a *agents) Take(all bool) [][]*cav1.AgentAcknowledgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.new
	if all {
		taken = a.all
	}
	a.new = nil
	if len(taken) == 0 {
		return nil
	}
	return [][]*cav1.AgentAcknowledgement{{{Epoch: 1, Generation: 7, PodUids: slices.Clone(taken)}}}
}

// reported waits until the ca has got exactly these reports, in order.
func (f *fixture) reported(want ...string) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var got []string
		for _, m := range f.reports {
			for _, a := range m.GetAgents() {
				got = append(got, fmt.Sprintf("%d/%d %v", a.GetEpoch(), a.GetGeneration(), a.GetPodUids()))
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("reported %q, want %q", got, want)
		}
		return nil
	})
}

func TestAgentsAreReported(t *testing.T) {
	a := &agents{}
	a.ack("one")
	f := startReporting(t, a)
	f.send <- f.signed(7)
	f.take()
	f.reported("1/7 [one]")

	// What comes within the gap goes into one report.
	a.ack("two")
	a.ack("three")
	f.clock.WaitFor(t, 1)
	f.clock.Advance(reportGap - time.Millisecond)
	f.reported("1/7 [one]")
	f.clock.Advance(time.Millisecond)
	f.reported("1/7 [one]", "1/7 [two three]")

	// On a new stream everything again: the ca may have started anew.
	f.endStream()
	f.send <- f.signed(7)
	f.take()
	f.reported("1/7 [one]", "1/7 [two three]", "1/7 [one two three]")
}

// A ca that takes no reports is sent none for a while, and bundles still come.
func TestAgentsAreNotReportedToACAThatRefusesIt(t *testing.T) {
	a := &agents{}
	f := startReporting(t, a)
	a.ack("one")
	f.send <- f.signed(7)
	f.take()
	f.reported("1/7 [one]")
	f.end(&cav1.WatchBundleResponse{TrustDomain: refusal})
	a.ack("two")
	f.send <- f.signed(8)
	f.take()
	f.acknowledged(8)
	f.reported("1/7 [one]")
	f.clock.WaitFor(t, 1)
	f.clock.Advance(refusedPause)
	f.reported("1/7 [one]", "1/7 [one two]")
}
