package configsource_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/configsource"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

const patience = testkit.Patience

// watcherFake is a config-watcher that sends what a test says.
type watcherFake struct {
	configv1.UnimplementedConfigServiceServer
	streams chan *watchFake
}

// watchFake is one open Watch: what the subscriber said it holds, and the way to answer.
type watchFake struct {
	held map[string]int
	send chan *configv1.WatchResponse
	end  chan error
	acks chan uint64
}

func (f *watcherFake) Watch(stream configv1.ConfigService_WatchServer) error {
	w := &watchFake{held: map[string]int{}, send: make(chan *configv1.WatchResponse), end: make(chan error), acks: make(chan uint64, 100)}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetHello() != nil {
			break
		}
		if n := len(m.GetHeld().GetKeys()); len(m.GetHeld().GetHashes()) != 16*n {
			return status.Error(codes.InvalidArgument, "hashes do not fit keys")
		}
		w.held[m.GetHeld().GetKind()] += len(m.GetHeld().GetKeys())
	}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			w.acks <- m.GetAck().GetSequence()
		}
	}()
	f.streams <- w
	for {
		select {
		case m := <-w.send:
			if err := stream.Send(m); err != nil {
				return err
			}
		case err := <-w.end:
			return err
		case <-stream.Context().Done():
			return nil
		}
	}
}

type applied struct {
	sequence  uint64
	resources int
	keys      int
}

// follow runs a client against a fake config-watcher. Each call of apply waits for the gate, if there is one.
func follow(t *testing.T, gate <-chan struct{}) (*watcherFake, *configsource.Client, <-chan applied) {
	t.Helper()
	return followWith(t, gate, func(*configsource.Config) {})
}

func followWith(t *testing.T, gate <-chan struct{}, change func(*configsource.Config)) (*watcherFake, *configsource.Client,
	<-chan applied) {
	t.Helper()
	fake := &watcherFake{streams: make(chan *watchFake, 10)}
	conn := testkit.ServeInMemory(t, func(g *grpc.Server) { configv1.RegisterConfigServiceServer(g, fake) })
	got := make(chan applied, 100)
	cfg := configsource.Config{
		Watcher: configv1.NewConfigServiceClient(conn), Subscriber: &configv1.Subscriber{Instance: "test"}, Log: testkit.Logger(t),
		Registerer: prometheus.NewPedanticRegistry(), Rand: func() float64 { return 0 },
		Apply: func(s *mesh.Snapshot, change *mesh.Change) {
			got <- applied{s.Revision().GetSequence(), s.Len(), len(change.Keys)}
			if gate != nil {
				<-gate
			}
		},
	}
	change(&cfg)
	c, err := configsource.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, c.Run)
	return fake, c, got
}

func take[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

func chunk(epoch string, sequence uint64, commit bool, upserts ...*configv1.Resource) *configv1.WatchResponse {
	return &configv1.WatchResponse{Revision: &configv1.Revision{Epoch: epoch, Sequence: sequence}, Upserts: upserts, Commit: commit}
}

func TestRevisionsAreTakenWhole(t *testing.T) {
	fake, c, got := follow(t, nil)
	w := take(t, fake.streams)
	if c.Ready() == nil {
		t.Error("ready before anything came")
	}
	w.send <- chunk("e", 1, false, meshtest.Service("default", "a", 80))
	w.send <- chunk("e", 1, false, meshtest.Service("default", "b", 80))
	if c.Newest() != nil || c.Ready() == nil {
		t.Error("half a revision is in use")
	}
	w.send <- chunk("e", 1, true, meshtest.Service("default", "c", 80))
	if d := cmp.Diff(applied{1, 3, 3}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
		t.Error(d)
	}
	if got := take(t, w.acks); got != 1 {
		t.Errorf("acknowledged %d", got)
	}
	testkit.Eventually(t, patience, c.Ready)
}

func TestResumeKeepsTheStateOverOutages(t *testing.T) {
	fake, c, got := follow(t, nil)
	w := take(t, fake.streams)
	w.send <- chunk("e", 7, true, meshtest.Service("default", "a", 80), meshtest.Service("default", "b", 80),
		meshtest.Workload("default", "w", "10.0.0.1"))
	take(t, got)
	testkit.Eventually(t, patience, c.Ready)

	// Cut in the middle of a revision: its part is forgotten, all else stays in use.
	w.send <- chunk("e", 8, false, meshtest.Service("default", "never-committed", 80))
	w.end <- status.Error(codes.Unavailable, "restarting")
	w = take(t, fake.streams)
	if d := cmp.Diff(map[string]int{"Service": 2, "Workload": 1}, w.held); d != "" {
		t.Errorf("held (-want +got):\n%s", d)
	}
	if err := c.Ready(); err != nil {
		t.Errorf("not ready while config-watcher is away: %v", err)
	}

	// Another epoch counts from 1 again and sends the difference only.
	m := chunk("f", 1, true, meshtest.Service("default", "c", 80))
	m.Removed = []*configv1.ResourceKey{{Kind: mesh.KindService, Namespace: "default", Name: "a"}}
	w.send <- m
	if d := cmp.Diff(applied{1, 3, 2}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
		t.Error(d)
	}
	if got := c.Newest().GetEpoch(); got != "f" {
		t.Errorf("epoch %q", got)
	}

	// Nothing has changed when it comes back: the revision is taken over all the same.
	w.end <- nil
	w = take(t, fake.streams)
	w.send <- chunk("g", 1, true)
	if d := cmp.Diff(applied{1, 3, 0}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
		t.Error(d)
	}
}

func TestRevisionsJoinWhileOneIsApplied(t *testing.T) {
	gate := make(chan struct{})
	fake, c, got := follow(t, gate)
	w := take(t, fake.streams)
	w.send <- chunk("e", 1, true, meshtest.Service("default", "a", 80))
	take(t, got)
	for i := range uint64(20) {
		w.send <- chunk("e", i+2, true, meshtest.Workload("default", fmt.Sprint("w", i), "10.0.0.1"))
	}
	received(t, c, 21)
	close(gate)
	if d := cmp.Diff(applied{21, 21, 20}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
		t.Error(d)
	}
	for _, want := range []uint64{1, 21} {
		if got := take(t, w.acks); got != want {
			t.Errorf("acknowledged %d, want %d: each time the newest that was applied", got, want)
		}
	}
}

// received waits until the client has received a revision.
func received(t *testing.T, c *configsource.Client, sequence uint64) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := c.Newest().GetSequence(); got != sequence {
			return fmt.Errorf("has received revision %d, want %d", got, sequence)
		}
		return nil
	})
}

// An acknowledgement goes to whom the revision came from: another config-watcher counts otherwise.
func TestRevisionOfABrokenStreamIsNotAcknowledgedToTheNext(t *testing.T) {
	gate := make(chan struct{})
	fake, c, got := follow(t, gate)
	w := take(t, fake.streams)
	w.send <- chunk("e", 7, true, meshtest.Service("default", "a", 80))
	take(t, got)
	w.end <- status.Error(codes.Unavailable, "restarting")
	next := take(t, fake.streams)
	gate <- struct{}{}
	next.send <- chunk("f", 1, true, meshtest.Service("default", "b", 80))
	received(t, c, 1)
	take(t, got)
	close(gate)
	if got := take(t, next.acks); got != 1 {
		t.Errorf("acknowledged %d, want 1", got)
	}
}

// fleetFake says how busy proxies are.
type fleetFake struct {
	mu       sync.Mutex
	settled  chan struct{}
	progress uint64
	// moving is true if they get further all the time.
	moving bool
}

func (f *fleetFake) busy() (settled <-chan struct{}, progress uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.moving {
		f.progress++
	}
	return f.settled, f.progress
}

func TestRevisionsWaitForBusyProxies(t *testing.T) {
	const step = 50 * time.Millisecond
	for _, tc := range []struct {
		name  string
		fleet *fleetFake
		// goOn lets the revisions that wait be applied; waits is how many steps they wait before, at least.
		goOn  func(f *fleetFake, clock *testkit.Clock)
		waits int
	}{
		{name: "until they have settled", fleet: &fleetFake{moving: true}, waits: 3,
			goOn: func(f *fleetFake, _ *testkit.Clock) { close(f.settled) }},
		{name: "no longer than they get further", fleet: &fleetFake{}, goOn: func(_ *fleetFake, clock *testkit.Clock) { clock.Advance(step) }},
		{name: "no longer than a second", fleet: &fleetFake{moving: true}, waits: 19,
			goOn: func(_ *fleetFake, clock *testkit.Clock) { clock.Advance(step) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := testkit.NewClock(meshtest.Epoch)
			fake, c, got := followWith(t, nil, func(cfg *configsource.Config) { cfg.Clock, cfg.Busy = clock, tc.fleet.busy })
			w := take(t, fake.streams)
			w.send <- chunk("e", 1, true, meshtest.Service("default", "a", 80))
			if d := cmp.Diff(applied{1, 1, 1}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
				t.Fatalf("without a busy proxy it is not applied at once: %s", d)
			}
			take(t, w.acks)
			tc.fleet.mu.Lock()
			tc.fleet.settled = make(chan struct{})
			tc.fleet.mu.Unlock()
			for i := range uint64(5) {
				w.send <- chunk("e", i+2, true, meshtest.Service("default", fmt.Sprint("b", i), 80))
			}
			received(t, c, 6)
			for range tc.waits {
				clock.WaitFor(t, 1)
				clock.Advance(step)
			}
			clock.WaitFor(t, 1)
			select {
			case a := <-got:
				t.Fatalf("applied while the proxies are busy: %v", a)
			default:
			}
			tc.goOn(tc.fleet, clock)
			if d := cmp.Diff(applied{6, 6, 5}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
				t.Error(d)
			}
			if got := take(t, w.acks); got != 6 {
				t.Errorf("acknowledged %d", got)
			}
		})
	}
}

func TestGarbageIsCountedAndPassedOver(t *testing.T) {
	fake, _, got := follow(t, nil)
	w := take(t, fake.streams)
	w.send <- chunk("e", 1, true, meshtest.Service("default", "a", 80), &configv1.Resource{
		Key:  &configv1.ResourceKey{Kind: mesh.KindSidecar, Namespace: "default", Name: "s"},
		Body: &configv1.Resource_IstioConfig{IstioConfig: &configv1.IstioConfig{}},
	})
	if d := cmp.Diff(applied{1, 1, 1}, take(t, got), cmp.AllowUnexported(applied{})); d != "" {
		t.Error(d)
	}
}
