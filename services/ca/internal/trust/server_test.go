package trust

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// serve runs the service alone, without the authentication that the ca puts before it.
func serve(t *testing.T, publisher *Publisher, acks *Acks, by clock.Clock) cav1.TrustServiceClient {
	t.Helper()
	lis, dialer := testkit.Bufconn(t)
	s := grpc.NewServer()
	cav1.RegisterTrustServiceServer(s, NewServer(publisher, acks, by, func() float64 { return 0 }))
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///test", dialer, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return cav1.NewTrustServiceClient(conn)
}

var errStillOpen = errors.New("the watch is still open")

func counter() Numberer {
	n := uint64(0)
	return func(context.Context, []string) (uint64, error) { n++; return n, nil }
}

func TestSilentStreamsAreClosed(t *testing.T) {
	clock := testkit.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	client := serve(t, NewPublisher("cluster.local", counter()), NewAcks(1), clock)
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

// A watch that opens before there is a bundle waits for it, and a slow one skips what was replaced meanwhile.
func TestNewestWins(t *testing.T) {
	publisher, acks := NewPublisher("cluster.local", counter()), NewAcks(1)
	stream, err := serve(t, publisher, acks, testkit.NewClock(time.Time{})).WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&cav1.WatchBundleRequest{Subscriber: "a"}); err != nil {
		t.Fatal(err)
	}
	var last uint64
	for i, roots := range [][]string{{"a"}, {"b", "a", "b"}, {"a", "b"}, {"c"}} {
		if err := publisher.Publish(t.Context(), roots); err != nil {
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
	if err := publisher.Publish(t.Context(), nil); err == nil {
		t.Error("published a bundle without roots")
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if open, _ := acks.Behind(0); open != 0 {
			return errStillOpen
		}
		return nil
	})
}

// Watches are shared: one identity may open all there are, another takes from it up to the same number, and a stream
// counts before it has said anything.
func TestWatchesAreSharedBetweenIdentities(t *testing.T) {
	acks := NewAcks(4)
	open := func(identity string) (uint64, <-chan struct{}) {
		t.Helper()
		id, displaced, ok := acks.add(identity)
		if !ok {
			t.Fatalf("%s is refused with %v open", identity, acks.held)
		}
		return id, displaced
	}
	refused := func(identity string) {
		t.Helper()
		if _, _, ok := acks.add(identity); ok {
			t.Errorf("%s got more than its share: %v", identity, acks.held)
		}
	}
	ended := func(displaced <-chan struct{}) bool {
		select {
		case <-displaced:
			return true
		default:
			return false
		}
	}
	var greedy []<-chan struct{}
	var last uint64
	for range 4 {
		id, displaced := open("greedy")
		greedy, last = append(greedy, displaced), id
	}
	refused("greedy")
	modest, _ := open("modest")
	if !ended(greedy[3]) || ended(greedy[2]) {
		t.Error("not the newest watch of the greedy identity made room")
	}
	open("modest")
	refused("modest")
	refused("greedy")
	open("third")
	refused("third")
	open("fourth")
	refused("fifth")
	if displaced, rejected := acks.Refused(); displaced != 4 || rejected != 5 {
		t.Errorf("%d displaced and %d rejected, want 4 and 5", displaced, rejected)
	}
	// An acknowledgement of a displaced watch has no effect, and its end frees no second place.
	acks.ack(last, 1)
	acks.remove(last)
	if acks.Open() != 4 {
		t.Errorf("%d open, want 4", acks.Open())
	}
	acks.remove(modest)
	acks.remove(modest)
	open("fifth")
	refused("fifth")
}

// A watch that has to make room says why and when to come back, whether its subscriber is known by then or not.
func TestDisplacedWatchesAreTold(t *testing.T) {
	for name, subscriber := range map[string]string{"silent": "", "named": "a"} {
		t.Run(name, func(t *testing.T) {
			acks := NewAcks(2)
			client := serve(t, NewPublisher("cluster.local", counter()), acks, testkit.NewClock(time.Time{}))
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
					_, open := acks.Behind(1)
					if len(open) != n+1 || open[n].Subscriber != subscriber {
						return fmt.Errorf("open are %v, want %d", open, n+1)
					}
					return nil
				})
			}
			if _, _, ok := acks.add("other"); !ok {
				t.Fatal("no room was made")
			}
			_, err := newest.Recv()
			st := status.Convert(err)
			if st.Code() != codes.ResourceExhausted || len(st.Details()) != 2 {
				t.Errorf("got %v with %v, want RESOURCE_EXHAUSTED with a reason and a delay", err, st.Details())
			}
		})
	}
}
