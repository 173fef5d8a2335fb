package trustbundle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// serve runs TrustService without authentication.
func serve(t *testing.T, publisher *Publisher, watches *Watches, by clock.Clock) cav1.TrustServiceClient {
	t.Helper()
	return serveSigned(t, publisher, watches, testkit.PKI(t).NewSVID("istio-system", "ca"), by)
}

// serveSigned is serve with the ca's own certificate.
func serveSigned(t *testing.T, publisher *Publisher, watches *Watches, own tlsconf.Source, by clock.Clock) cav1.TrustServiceClient {
	t.Helper()
	by = clock.Or(by)
	server := NewServer(ServerConfig{
		Publisher: publisher, Signed: NewSignatures(own, by), Watches: watches, Clock: by, Random: func() float64 { return 0 },
	})
	return cav1.NewTrustServiceClient(testkit.ServeInMemory(t, func(s *grpc.Server) { cav1.RegisterTrustServiceServer(s, server) }))
}

var errStillOpen = errors.New("the watch is still open")

// counter numbers bundles as they differ.
func counter() Numberer {
	n, last := uint64(0), []string(nil)
	return func(_ context.Context, _, all []string) (Numbered, error) {
		if !slices.Equal(all, last) {
			n, last = n+1, all
		}
		return Numbered{Generation: n}, nil
	}
}

func TestStreamWithoutAFirstMessageIsClosed(t *testing.T) {
	clock := testkit.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	client := serve(t, NewPublisher("cluster.local", counter()), NewWatches(1), clock)
	stream, err := client.WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clock.WaitFor(t, 1)
	clock.Advance(openWithin)
	if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want DEADLINE_EXCEEDED", err)
	}
}

// A watch that opens before there is a bundle waits for it, and a slow one skips generations that were replaced
// meanwhile.
func TestWatchGetsTheNewestGeneration(t *testing.T) {
	publisher, watches := NewPublisher("cluster.local", counter()), NewWatches(1)
	stream, err := serve(t, publisher, watches, testkit.NewClock(time.Time{})).WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: "a"}); err != nil {
		t.Fatal(err)
	}
	var last uint64
	a, b, c := string(testkit.PKI(t).RootPEM), string(testkit.PKI(t).RootPEM), string(testkit.PKI(t).RootPEM)
	for i, roots := range [][]string{{a}, {b, a, b}, {a, b}, {c}} {
		if err := publisher.Publish(t.Context(), nil, roots); err != nil {
			t.Fatal(err)
		}
		if bundle, _ := publisher.Current(); i == 2 && bundle.Generation != 2 {
			t.Errorf("the same roots in another order are generation %d", bundle.Generation)
		}
	}
	for last != 3 {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got.GetGeneration() <= last {
			t.Fatalf("generation %d after %d", got.GetGeneration(), last)
		}
		last = got.GetGeneration()
	}
	if err := publisher.Publish(t.Context(), nil, nil); err == nil {
		t.Error("published a bundle without roots")
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if open, _ := watches.Behind(nil); open != 0 {
			return errStillOpen
		}
		return nil
	})
}

// One identity may open all watches. Another identity takes watches from it until both have the same number. A stream
// counts before its first message.
func TestWatchesAreSharedBetweenIdentities(t *testing.T) {
	watches := NewWatches(4)
	open := func(identity string) *watch {
		t.Helper()
		w, ok := watches.add(identity)
		if !ok {
			t.Fatalf("%s is refused with %v open", identity, watches.open)
		}
		return w
	}
	refused := func(identity string) {
		t.Helper()
		if _, ok := watches.add(identity); ok {
			t.Errorf("%s got more than its share: %v", identity, watches.open)
		}
	}
	ended := func(w *watch) bool {
		select {
		case <-w.displaced:
			return true
		default:
			return false
		}
	}
	var greedy []*watch
	for range 4 {
		greedy = append(greedy, open("greedy"))
	}
	refused("greedy")
	modest := open("modest")
	if !ended(greedy[3]) || ended(greedy[2]) {
		t.Error("not the newest watch of the greedy identity was displaced")
	}
	open("modest")
	refused("modest")
	refused("greedy")
	open("third")
	refused("third")
	open("fourth")
	refused("fifth")
	if displaced, rejected := watches.Rejected(); displaced != 4 || rejected != 5 {
		t.Errorf("%d displaced and %d rejected, want 4 and 5", displaced, rejected)
	}
	// A displaced watch no longer counts: its acknowledgement and its end have no effect.
	watches.ack(greedy[3], point{generation: 1})
	watches.remove(greedy[3])
	if watches.Open() != 4 {
		t.Errorf("%d open, want 4", watches.Open())
	}
	watches.remove(modest)
	watches.remove(modest)
	open("fifth")
	refused("fifth")
}

// The status of a displaced watch has a reason and a delay, before and after its first message.
func TestDisplacedWatchEndsWithAReasonAndADelay(t *testing.T) {
	for name, subscriber := range map[string]string{"silent": "", "named": "a"} {
		t.Run(name, func(t *testing.T) {
			watches := NewWatches(2)
			client := serve(t, NewPublisher("cluster.local", counter()), watches, testkit.NewClock(time.Time{}))
			var newest cav1.TrustService_WatchBundleClient
			for n := range 2 {
				var err error
				if newest, err = client.WatchBundle(t.Context()); err != nil {
					t.Fatal(err)
				}
				if subscriber != "" {
					if err := newest.Send(&cav1.WatchBundleRequest{Subscriber: subscriber}); err != nil {
						t.Fatal(err)
					}
				}
				testkit.Eventually(t, testkit.Patience, func() error {
					_, open := watches.Behind(&Bundle{Generation: 1})
					if len(open) != n+1 || open[n].Subscriber != subscriber {
						return fmt.Errorf("open are %v, want %d", open, n+1)
					}
					return nil
				})
			}
			if _, ok := watches.add("other"); !ok {
				t.Fatal("no watch was displaced")
			}
			_, err := newest.Recv()
			st := status.Convert(err)
			if st.Code() != codes.ResourceExhausted || len(st.Details()) != 2 {
				t.Errorf("got %v with %v, want RESOURCE_EXHAUSTED with a reason and a delay", err, st.Details())
			}
		})
	}
}
