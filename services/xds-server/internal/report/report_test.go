package report_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/report"
)

// fakeFleet is a fleet that a test edits.
type fakeFleet struct {
	// refusals are reported once.
	refusals atomic.Pointer[configv1.Refusals]
	notify.Notifier
	mu       sync.Mutex
	statuses map[string]*configv1.ProxyStatus
	dirty    map[string]bool
	served   *configv1.Revision
	// settled is closed when the proxies have answered; nil if they have.
	settled chan struct{}
}

func (f *fakeFleet) Report(all bool) (statuses []*configv1.ProxyStatus, gone []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.dirty {
		if f.statuses[id] == nil {
			gone = append(gone, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.statuses)) {
		if all || f.dirty[id] {
			statuses = append(statuses, f.statuses[id])
		}
	}
	clear(f.dirty)
	return statuses, gone
}

func (f *fakeFleet) NewRefusals(bool) *configv1.Refusals { return f.refusals.Swap(nil) }

func (f *fakeFleet) RefuseRegistrations([]*configv1.RefusedRegistration) {}

func (f *fakeFleet) Served() *configv1.Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served
}

func (f *fakeFleet) AllAnswered() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settled
}

// await makes the proxies owe an answer; answer makes them send it.
func (f *fakeFleet) await(answers chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = answers
}

func (f *fakeFleet) answer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.settled)
	f.settled = nil
}

// set changes the served revision and some statuses; the proxies in gone disconnect.
func (f *fakeFleet) set(served *configv1.Revision, gone string, statuses ...*configv1.ProxyStatus) {
	f.mu.Lock()
	f.served = served
	for _, s := range statuses {
		f.statuses[s.GetNodeId()], f.dirty[s.GetNodeId()] = s, true
	}
	if gone != "" {
		delete(f.statuses, gone)
		f.dirty[gone] = true
	}
	f.mu.Unlock()
	f.Notify()
}

// fakeSink is a config-watcher that passes the reports to the test.
type fakeSink struct {
	configv1.UnimplementedConfigServiceServer
	got chan *configv1.ReportRequest
	end chan error
	// old is true for one that does not know settled proxies.
	old bool
}

func (f *fakeSink) Report(stream configv1.ConfigService_ReportServer) error {
	broken := make(chan error, 1)
	go func() {
		for n := uint64(1); ; n++ {
			m, err := stream.Recv()
			if err == nil {
				f.got <- m
				err = stream.Send(&configv1.ReportResponse{Received: n, KnowsSettled: !f.old})
			}
			if err != nil {
				broken <- err
				return
			}
		}
	}()
	select {
	case err := <-f.end:
		return err
	case err := <-broken:
		return err
	}
}

func proxy(id string, acked *configv1.Revision) *configv1.ProxyStatus {
	return &configv1.ProxyStatus{NodeId: id, Acked: acked, Types: []*configv1.ProxyTypeStatus{{TypeUrl: "t", Sent: acked, Acked: acked}}}
}

// run starts a reporter of a fleet to a config-watcher.
func run(t *testing.T, sink *fakeSink, fleet *fakeFleet) (self *configv1.Subscriber,
	expect func(what string, want *configv1.ReportRequest)) {
	t.Helper()
	return runWith(t, sink, fleet, nil)
}

func runWith(t *testing.T, sink *fakeSink, fleet *fakeFleet, timer clock.Clock) (self *configv1.Subscriber,
	expect func(what string, want *configv1.ReportRequest)) {
	t.Helper()
	lis, dialer := testkit.Bufconn(t)
	g := grpc.NewServer()
	configv1.RegisterConfigServiceServer(g, sink)
	go func() { _ = g.Serve(lis) }() // ends with Stop
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///test", dialer, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	self = &configv1.Subscriber{Instance: "test"}
	r, err := report.New(report.Config{
		Sink: configv1.NewConfigServiceClient(conn), Fleet: fleet, Subscriber: self, Log: testkit.Logger(t), Clock: timer,
		Rand: func() float64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return self, func(what string, want *configv1.ReportRequest) {
		t.Helper()
		select {
		case got := <-sink.got:
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("%s (-want +got):\n%s", what, d)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("%s: nothing came", what)
		}
	}
}

func newFleet() *fakeFleet {
	return &fakeFleet{statuses: map[string]*configv1.ProxyStatus{}, dirty: map[string]bool{}}
}

func newSink(old bool) *fakeSink {
	return &fakeSink{got: make(chan *configv1.ReportRequest, 100), end: make(chan error), old: old}
}

// A report waits for proxies that have not answered yet, but not for long.
func TestReportWaitsForAnswers(t *testing.T) {
	sink, fleet := newSink(false), newFleet()
	clock := testkit.NewClock(time.Unix(0, 0))
	a := proxy("a", one)
	fleet.set(one, "", a)
	self, expect := runWith(t, sink, fleet, clock)
	expect("first message is complete", &configv1.ReportRequest{Subscriber: self, Revision: one, Proxies: []*configv1.ProxyStatus{a}})

	const gap = 10 * time.Millisecond
	fleet.await(make(chan struct{}))
	fleet.set(two, "", proxy("a", one))
	clock.WaitFor(t, 1) // for the gap since the last message
	clock.Advance(gap)
	clock.WaitFor(t, 1) // for the proxy
	a2 := proxy("a", two)
	fleet.set(two, "", a2)
	fleet.answer()
	expect("its answer is in the first report of the revision", &configv1.ReportRequest{Revision: two, Proxies: []*configv1.ProxyStatus{a2}})

	fleet.await(make(chan struct{}))
	fleet.set(one, "", a)
	for range 2 {
		clock.WaitFor(t, 1)
		clock.Advance(gap)
	}
	expect("a proxy that does not answer", &configv1.ReportRequest{Revision: one, Proxies: []*configv1.ProxyStatus{a}})
}

// After a message about many proxies the next one waits longer.
func TestManyProxiesAreReportedLessOften(t *testing.T) {
	sink, fleet := newSink(false), newFleet()
	clock := testkit.NewClock(time.Unix(0, 0))
	var all []*configv1.ProxyStatus
	for i := range 400 {
		all = append(all, proxy(fmt.Sprintf("%04d", i), one))
	}
	fleet.set(one, "", all...)
	self, expect := runWith(t, sink, fleet, clock)
	expect("first message is complete", &configv1.ReportRequest{Subscriber: self, Proxies: all, Revision: one})
	fleet.set(two, "")
	clock.WaitFor(t, 1)
	if wait, _ := clock.NextIn(); wait != 100*time.Millisecond {
		t.Errorf("the next message waits for %s, want a quarter of a millisecond for each proxy of the one before", wait)
	}
	clock.Advance(100 * time.Millisecond)
	expect("nothing but a revision", &configv1.ReportRequest{Revision: two})
	fleet.set(one, "")
	clock.WaitFor(t, 1)
	if wait, _ := clock.NextIn(); wait != 10*time.Millisecond {
		t.Errorf("the next message waits for %s, want the least", wait)
	}
	clock.Advance(10 * time.Millisecond)
	expect("another one soon after", &configv1.ReportRequest{Revision: one})
}

var one, two = &configv1.Revision{Epoch: "e", Sequence: 1}, &configv1.Revision{Epoch: "e", Sequence: 2}

func TestReport(t *testing.T) {
	sink, fleet := newSink(false), newFleet()
	a, b := proxy("a", one), proxy("b", one)
	fleet.set(one, "", a, b)
	self, expect := run(t, sink, fleet)
	proxies := func(p ...*configv1.ProxyStatus) []*configv1.ProxyStatus { return p }

	expect("first message is complete", &configv1.ReportRequest{Subscriber: self, Revision: one, Proxies: proxies(a, b)})
	fleet.Notify()
	a2 := proxy("a", two)
	fleet.set(one, "", a2)
	expect("then differences", &configv1.ReportRequest{Revision: one, Proxies: proxies(a2)})
	fleet.set(two, "")
	expect("a revision that changes nothing for anybody", &configv1.ReportRequest{Revision: two})
	rejected := proxy("b", one)
	rejected.Types[0].Rejection = &configv1.Rejection{Message: "no"}
	fleet.set(two, "", rejected)
	expect("a rejection", &configv1.ReportRequest{Revision: two, Proxies: proxies(rejected)})
	fleet.set(two, "a")
	expect("a proxy that left", &configv1.ReportRequest{Revision: two, Disconnected: []string{"a"}})
	sink.end <- status.Error(codes.Unavailable, "restarting")
	expect("complete again after an outage", &configv1.ReportRequest{Subscriber: self, Revision: two, Proxies: proxies(rejected)})
}

func TestRefusalsAreReported(t *testing.T) {
	fleet := newFleet()
	fleet.set(one, "")
	self, expect := run(t, newSink(false), fleet)
	expect("the first message", &configv1.ReportRequest{Subscriber: self, Revision: one})
	refusals := &configv1.Refusals{Refusals: []*configv1.Refusal{{Identity: "greedy", Budget: "names"}}}
	fleet.refusals.Store(refusals)
	fleet.set(one, "")
	expect("a refusal", &configv1.ReportRequest{Refusals: refusals, Revision: one})
}

func TestReportToAnOlderConfigWatcher(t *testing.T) {
	sink, fleet := newSink(true), newFleet()
	a, b := proxy("a", one), proxy("b", one)
	fleet.set(one, "", a, b)
	self, expect := run(t, sink, fleet)
	expect("first message is complete", &configv1.ReportRequest{Subscriber: self, Revision: one, Proxies: []*configv1.ProxyStatus{a, b}})
	fleet.set(two, "")
	expect("every proxy with every revision", &configv1.ReportRequest{Revision: two, Proxies: []*configv1.ProxyStatus{a, b}})
	fleet.set(two, "", b)
	expect("differences otherwise", &configv1.ReportRequest{Revision: two, Proxies: []*configv1.ProxyStatus{b}})
}

func TestManyProxiesCountOnlyWithTheLastMessage(t *testing.T) {
	sink, fleet := newSink(false), newFleet()
	var all []*configv1.ProxyStatus
	for i := range 1200 {
		all = append(all, proxy(fmt.Sprintf("%04d", i), one))
	}
	fleet.set(one, "", all...)
	self, expect := run(t, sink, fleet)
	expect("first part", &configv1.ReportRequest{Subscriber: self, Proxies: all[:500]})
	expect("second part", &configv1.ReportRequest{Proxies: all[500:1000]})
	expect("last part", &configv1.ReportRequest{Proxies: all[1000:], Revision: one})
}
