package trust

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// serve runs the service alone, without the authentication that the ca puts before it.
func serve(t *testing.T, publisher *Publisher, acks *Acks, clock Clock) cav1.TrustServiceClient {
	t.Helper()
	lis, dialer := testkit.Bufconn(t)
	s := grpc.NewServer()
	cav1.RegisterTrustServiceServer(s, NewServer(publisher, acks, clock))
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
