package fleet

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/revision"
)

func rev(sequence uint64) *configv1.Revision {
	return &configv1.Revision{Epoch: "e", Sequence: sequence, StateHash: []byte(fmt.Sprintf("state-%010d", sequence))}
}

// proxy is the report of a node ID that connected at a second and has acknowledged a revision (0: none).
func report(at int64, acked uint64, ids ...string) *configv1.ReportRequest {
	m := &configv1.ReportRequest{Revision: rev(acked)}
	for _, id := range ids {
		p := &configv1.ProxyStatus{NodeId: id, Namespace: "apps", Workload: id, ConnectedAt: timestamppb.New(time.Unix(at, 0))}
		if acked > 0 {
			p.Acked = rev(acked)
		}
		m.Proxies = append(m.Proxies, p)
	}
	return m
}

func verdict(t *Table, sequence uint64) string {
	v, _, _ := t.ProgressOf(rev(sequence), nil)
	out := fmt.Sprintf("acked %d pending [%s]", v.Acked, strings.Join(v.Pending, " "))
	for _, r := range v.Rejected {
		out += " rejected " + r.NodeId + "@" + r.XdsServer
	}
	if v.Incomplete {
		out += " incomplete"
	}
	return out
}

func TestReplicasComeAndGo(t *testing.T) {
	clk := testkit.NewClock(time.Unix(1000, 0))
	table := NewTable(clk)
	expect := func(step, want string) {
		t.Helper()
		if got := verdict(table, 5); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	expect("nobody has reported yet", "acked 0 pending [] incomplete")
	table.Subscribed("x0")
	table.Subscribed("x1")
	r0 := table.Report("x0")
	r0.Apply(report(1, 5, "a", "b"), true)
	expect("one of two xds-servers reports", "acked 2 pending [] incomplete")
	r1 := table.Report("x1")
	r1.Apply(report(1, 4, "c"), true)
	expect("both report", "acked 2 pending [c]")
	r1.Apply(report(2, 4, "b"), false)
	expect("b moved to the other", "acked 1 pending [b c]")
	r1.Apply(report(2, 5, "b", "c"), false)
	expect("and acknowledges there", "acked 3 pending []")
	r0.Apply(&configv1.ReportRequest{Disconnected: []string{"b"}}, false)
	expect("the old one has noticed", "acked 3 pending []")

	r0.Close()
	table.Unsubscribed("x0")
	expect("x0 is lost: its proxies are unknown", "acked 2 pending [a]")
	r1.Apply(report(3, 5, "a"), false)
	expect("its proxy came back elsewhere", "acked 3 pending []")
	r1.Apply(&configv1.ReportRequest{Disconnected: []string{"a"}}, false)
	expect("and left for good: what x0 has said of it does not count", "acked 2 pending []")
	r1.Apply(report(3, 5, "a"), false)
	r1.Close()
	expect("all are lost", "acked 0 pending [a b c] incomplete")
	again := table.Report("x1")
	again.Apply(report(3, 5, "a"), true)
	expect("a new stream is complete: b and c have gone", "acked 1 pending []")
	r1.Apply(report(9, 1, "ghost"), false)
	r1.Close()
	expect("the old stream says no more", "acked 1 pending []")
	again.Close()
	clk.Advance(LostServerGrace)
	expect("after the grace nobody is left", "acked 0 pending []")
	table.Unsubscribed("x1")
	if got := len(table.List("")); got != 0 {
		t.Errorf("%d proxies listed", got)
	}
}

func TestRejections(t *testing.T) {
	table := NewTable(testkit.NewClock(time.Unix(1000, 0)))
	r := table.Report("x")
	reject := func(at, served uint64, awaiting bool) *configv1.ReportRequest {
		m := report(1, 3, "a")
		m.Revision = rev(served)
		m.Proxies[0].Types = []*configv1.ProxyTypeStatus{{TypeUrl: "t", Rejection: &configv1.Rejection{Revision: rev(at), Message: "no"},
			Awaiting: awaiting}}
		return m
	}
	for _, c := range []struct {
		name    string
		message *configv1.ReportRequest
		want    string
	}{
		{"rejected the target", reject(5, 5, false), "acked 0 pending [] rejected a@x"},
		{"rejected an older one, the target is not served yet", reject(4, 4, false), "acked 0 pending [a]"},
		{"rejected an older one, another response is under way", reject(4, 5, true), "acked 0 pending [a]"},
		{"rejected an older one and nothing else comes", reject(4, 5, false), "acked 0 pending [] rejected a@x"},
		{"acknowledged in the end", report(1, 5, "a"), "acked 1 pending []"},
	} {
		r.Apply(c.message, false)
		if got := verdict(table, 5); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestSettledProxies(t *testing.T) {
	table := NewTable(testkit.NewClock(time.Unix(1000, 0)))
	r := table.Report("x")
	m := report(1, 4, "a", "b")
	m.Proxies[0].Settled = true
	r.Apply(m, true)
	expect := func(step, want string) {
		t.Helper()
		if got := verdict(table, 5); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	expect("revision 4 is served", "acked 0 pending [a b]")
	r.Apply(&configv1.ReportRequest{Proxies: report(1, 4, "c").Proxies}, false)
	expect("a message without a revision is not the last of its round", "acked 0 pending [a b c]")
	r.Apply(&configv1.ReportRequest{Revision: rev(5)}, false)
	expect("revision 5 is served, and a is settled", "acked 1 pending [b c]")
	if got := table.List("")[0].GetAcked().GetSequence(); got != 5 {
		t.Errorf("the settled proxy is listed with revision %d", got)
	}
	r.Apply(report(1, 4, "a"), false)
	r.Apply(&configv1.ReportRequest{Revision: rev(5)}, false)
	expect("and is not settled any more", "acked 0 pending [a b c]")
}

func TestEpochs(t *testing.T) {
	target := &configv1.Revision{Epoch: "new", Sequence: 1, StateHash: []byte("same")}
	for name, c := range map[string]struct {
		acked *configv1.Revision
		want  bool
	}{
		"never":                          {nil, false},
		"same epoch, later":              {&configv1.Revision{Epoch: "new", Sequence: 2}, true},
		"other epoch, same state":        {&configv1.Revision{Epoch: "old", Sequence: 9, StateHash: []byte("same")}, true},
		"other epoch, other state":       {&configv1.Revision{Epoch: "old", Sequence: 9, StateHash: []byte("other")}, false},
		"same epoch, earlier, same hash": {&configv1.Revision{Epoch: "new", Sequence: 0, StateHash: []byte("same")}, false},
	} {
		if got := Reached(c.acked, target); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWaitAcked(t *testing.T) {
	clk := testkit.NewClock(time.Unix(1000, 0))
	table := NewTable(clk)
	log := revision.NewLog("e", clk)
	s := NewService(table, log, nil, func(context.Context, string) (func(string) bool, error) { return nil, nil },
		func(string) ([]*configv1.RefusedRegistration, <-chan struct{}) { return nil, nil })
	log.Commit(nil, nil, "")
	r := table.Report("x")
	r.Apply(report(1, 0, "a"), true)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	done := make(chan *configv1.WaitAckedResponse, 1)
	go func() {
		got, err := s.WaitAcked(ctx, &configv1.WaitAckedRequest{})
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	clk.WaitFor(t, 1)
	limit, _ := clk.NextIn()
	if most := testkit.Patience - 500*time.Millisecond; limit > most {
		t.Errorf("waits for %s, want %s or less so that the answer comes in time", limit, most)
	}
	clk.Advance(limit)
	if got := <-done; len(got.GetPending()) != 1 {
		t.Fatalf("pending at the deadline is an answer, given before it: %v", got)
	}
	go func() {
		got, err := s.WaitAcked(ctx, &configv1.WaitAckedRequest{Sequence: 2})
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	log.Commit(nil, nil, "")
	r.Apply(report(1, 2, "a"), false)
	select {
	case got := <-done:
		if got.Acked != 1 || got.Revision.Sequence != 2 {
			t.Errorf("got %v", got)
		}
	case <-ctx.Done():
		t.Fatal("not told")
	}
}

// TestAWaitLooksAtTheFleetNowAndThen: each of many reports is a reason to look at all proxies, which one wait must not
// do without a rest.
func TestAWaitLooksAtTheFleetNowAndThen(t *testing.T) {
	const proxies, during = 5000, time.Second
	table := NewTable(clock.Real())
	log := revision.NewLog("e", clock.Real())
	var seen atomic.Int64
	s := NewService(table, log, nil, func(context.Context, string) (func(string) bool, error) {
		return func(string) bool { seen.Add(1); return true }, nil
	}, func(string) ([]*configv1.RefusedRegistration, <-chan struct{}) { return nil, nil })
	log.Commit(nil, nil, "")
	ids := make([]string, proxies)
	for i := range ids {
		ids[i] = fmt.Sprint("proxy-", i)
	}
	r := table.Report("x")
	r.Apply(report(1, 0, ids...), true)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := s.WaitAcked(ctx, &configv1.WaitAckedRequest{})
		done <- err
	}()
	one := time.Duration(math.MaxInt64)
	reports := time.NewTicker(100 * time.Microsecond)
	defer reports.Stop()
	for began := time.Now(); time.Since(began) < during; <-reports.C {
		r.Apply(report(1, 0, ids[0]), false)
		if time.Since(began) > during/2 && one == math.MaxInt64 {
			one = testkit.CPUTime(t, func() { table.ProgressOf(rev(1), func(string) bool { return true }) })
		}
	}
	if looks := time.Duration(seen.Load() / proxies); looks < 2 || looks*one > during/3 {
		t.Errorf("%d looks of %s each within %s", looks, one, during)
	}
	r.Apply(report(1, 1, ids...), false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWithoutReportsNothingIsKnown: when no xds-server reports, a wait fails instead of counting no proxies as all.
func TestWithoutReportsNothingIsKnown(t *testing.T) {
	clk := testkit.NewClock(time.Unix(1000, 0))
	table := NewTable(clk)
	log := revision.NewLog("e", clk)
	s := NewService(table, log, nil, func(context.Context, string) (func(string) bool, error) { return nil, nil },
		func(string) ([]*configv1.RefusedRegistration, <-chan struct{}) { return nil, nil })
	log.Commit(nil, nil, "")
	r := table.Report("x")
	r.Apply(report(1, 1), true)
	if got, err := s.WaitAcked(t.Context(), &configv1.WaitAckedRequest{}); err != nil || got.GetAcked() != 0 {
		t.Errorf("an xds-server without proxies: %v, %v", got, err)
	}
	r.Close()
	if v, _, _ := table.ProgressOf(&configv1.Revision{Epoch: "e", Sequence: 1}, nil); v.Done() {
		t.Errorf("another xds-server may report yet: %+v", v)
	}
	clk.Advance(LostServerGrace)
	if got, err := s.WaitAcked(t.Context(), &configv1.WaitAckedRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("nobody reports: %v, %v", got, err)
	}
}

// TestUnverifiedProxies: an unverified proxy neither delays a wait nor ends it, and is listed.
func TestUnverifiedProxies(t *testing.T) {
	table := NewTable(testkit.NewClock(time.Unix(1000, 0)))
	r := table.Report("x")
	m := report(1, 5, "a", "stranger", "liar")
	m.Revision = rev(5)
	m.Proxies[1].Acked, m.Proxies[1].Unverified = nil, true
	m.Proxies[2].Unverified = true
	m.Proxies[2].Types = []*configv1.ProxyTypeStatus{{TypeUrl: "t", Rejection: &configv1.Rejection{Revision: rev(5), Message: "forged"}}}
	r.Apply(m, true)
	if got, want := verdict(table, 5), "acked 1 pending []"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := table.List(""); len(got) != 3 || !got[1].GetUnverified() || got[1].GetTypes()[0].GetRejection().GetMessage() != "forged" {
		t.Errorf("listed %v", got)
	}
	r.Close()
	if got, want := verdict(table, 5), "acked 0 pending [a]"; got != want {
		t.Errorf("after the loss of their xds-server: %s, want %s", got, want)
	}
}

// TestIdentitiesOfOneNodeID: a report by another identity under the same node ID, on this or another xds-server, does
// not change the owner's.
func TestIdentitiesOfOneNodeID(t *testing.T) {
	table := NewTable(testkit.NewClock(time.Unix(1000, 0)))
	as := func(identity string, m *configv1.ReportRequest) *configv1.ReportRequest {
		m.Proxies[0].Identity = identity
		return m
	}
	forged := func(at int64) *configv1.ReportRequest {
		m := as("thief", report(at, 4, "a"))
		m.Proxies[0].Types = []*configv1.ProxyTypeStatus{{TypeUrl: "t", Rejection: &configv1.Rejection{Revision: rev(5), Message: "forged"}}}
		m.Proxies[0].Unverified = true
		return m
	}
	expect := func(step, want string, listed int) {
		t.Helper()
		if got := verdict(table, 5); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
		if got := table.List(""); len(got) != listed {
			t.Errorf("%s: %d proxies listed, want %d: %v", step, len(got), listed, got)
		}
	}
	r0, r1 := table.Report("x0"), table.Report("x1")
	r0.Apply(as("owner", report(1, 5, "a")), true)
	r1.Apply(&configv1.ReportRequest{Revision: rev(5)}, true)
	expect("the owner alone", "acked 1 pending []", 1)
	r1.Apply(forged(9), false)
	expect("forged at another replica", "acked 1 pending []", 2)
	r0.Apply(forged(10), false)
	expect("and at the same", "acked 1 pending []", 2)
	again := as("owner", report(1, 5, "a"))
	again.Disconnected = []string{"a"}
	r0.Apply(again, false)
	expect("the forger leaves, the owner is reported anew", "acked 1 pending []", 2)
	r0.Close()
	r1.Apply(forged(11), false)
	expect("the owner's xds-server is lost: the forger has not moved it", "acked 0 pending [a]", 2)
}

// TestAckedGoesForward: an acknowledged revision never goes back while a report comes in several messages, of which the
// last one names the served revision.
func TestAckedGoesForward(t *testing.T) {
	table := NewTable(testkit.NewClock(time.Unix(1000, 0)))
	r := table.Report("x0")
	r.Apply(report(1, 4, "a", "b"), true)
	say := func(step string, want uint64, m *configv1.ReportRequest) {
		t.Helper()
		r.Apply(m, false)
		for _, p := range table.List("") {
			if p.NodeId == "a" && p.Acked.GetSequence() != want {
				t.Errorf("%s: a has acknowledged %d, want %d", step, p.Acked.GetSequence(), want)
			}
		}
	}
	part := func(id string, acked uint64, settled bool) *configv1.ReportRequest {
		m := report(1, acked, id)
		m.Proxies[0].Settled, m.Revision = settled, nil
		return m
	}
	say("a has something to answer", 5, part("a", 5, false))
	say("a has answered, what is served is not known yet", 6, part("a", 6, true))
	last := part("b", 6, true)
	last.Revision = rev(6)
	say("what is served is known", 6, last)
	say("what is served goes on without a", 7, &configv1.ReportRequest{Revision: rev(7)})
}
