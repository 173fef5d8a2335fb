package serve_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
)

// bigMesh has clusters of about 400 KB.
func bigMesh() []*configv1.Resource {
	resources := basicMesh()
	for i := range 4000 {
		resources = append(resources, meshtest.Service("default", fmt.Sprintf("service-%04d.with-a-long-name.default.svc.cluster.local", i), 80))
	}
	return resources
}

// clientThatDoesNotRead subscribes to all clusters on a connection of its own and reads nothing.
func (r *fixture) clientThatDoesNotRead(pod string) (read func() error, leave func()) {
	r.t.Helper()
	return r.lazyWith(context.Background(), pod)
}

func (r *fixture) lazyWith(ctx context.Context, pod string) (read func() error, leave func()) {
	r.t.Helper()
	conn, err := grpc.NewClient(r.Conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r.t.Cleanup(func() { cancel(); _ = conn.Close() }) // the test is over
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err == nil {
		err = stream.Send(&discovery.DeltaDiscoveryRequest{Node: node(pod, "default"), TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	testkit.Eventually(r.t, patience, func() error {
		if r.status(pod) == nil {
			return errors.New("not connected")
		}
		return nil
	})
	return func() error { _, err := stream.Recv(); return err }, cancel
}

func (r *fixture) waiting(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if got := r.ADS.Waiting(); got != n {
			return fmt.Errorf("%d streams wait, want %d", got, n)
		}
		return nil
	})
}

func startBudget(t *testing.T) *fixture {
	t.Helper()
	return startWith(t, setup{change: func(c *serve.Config) { c.MaxUnsentBytes = 300 << 10 }}, bigMesh())
}

func TestFirstConfigurationsGoBeforeUpdates(t *testing.T) {
	r := startBudget(t)
	old := r.delta("old", "default")
	old.subscribe(eds, "80|"+hostA)
	old.ack(old.expect(eds, "+80|"+hostA))
	r.acked("old")

	read, _ := r.clientThatDoesNotRead("lazy")
	testkit.Eventually(t, patience, func() error {
		if r.ADS.Unsent() < 300<<10 {
			return fmt.Errorf("%d bytes under way", r.ADS.Unsent())
		}
		return nil
	})
	// Both streams wait, in either order; the change is not lost, and the newest version is sent.
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.2"))
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.3"))
	r.waiting(1)
	fresh := r.delta("fresh", "default")
	fresh.subscribe(eds, "80|"+hostA)
	r.waiting(2)
	select {
	case m := <-old.got:
		t.Fatalf("an update went out over the budget: %v", m)
	case m := <-fresh.got:
		t.Fatalf("a first configuration went out over the budget: %v", m)
	default:
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	newest := fresh.expect(eds, "+80|"+hostA)
	if got := old.expect(eds, "+80|"+hostA); got.GetResources()[0].GetVersion() != newest.GetResources()[0].GetVersion() {
		t.Error("the update is not the newest")
	}
	testkit.Eventually(t, patience, func() error {
		if n := r.ADS.Unsent(); n != 0 {
			return fmt.Errorf("%d bytes are still charged", n)
		}
		return nil
	})
}

func TestStreamsThatTakeNoDataEnd(t *testing.T) {
	r := startBudget(t)
	read, _ := r.clientThatDoesNotRead("lazy")
	fresh := r.delta("fresh", "default")
	fresh.subscribe(eds, "80|"+hostA)
	r.waiting(1)
	testkit.Eventually(t, patience, func() error {
		if r.ADS.Waiting() == 0 {
			return nil
		}
		r.clock.Advance(31 * time.Second) // again, if the send had its bytes but had not begun
		return errors.New("the lazy client holds its bytes")
	})
	fresh.expect(eds, "+80|"+hostA)
	for {
		if err := read(); err != nil {
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("the lazy client was told %v", err)
			}
			break
		}
	}
}

func TestStreamsThatEndReturnTheirBytes(t *testing.T) {
	r := startBudget(t)
	_, leave := r.clientThatDoesNotRead("lazy")
	fresh := r.delta("fresh", "default")
	fresh.subscribe(eds, "80|"+hostA)
	r.waiting(1)
	leave()
	fresh.expect(eds, "+80|"+hostA)
	testkit.Eventually(t, patience, func() error {
		if n := r.ADS.Unsent(); n != 0 {
			return fmt.Errorf("%d bytes are still charged", n)
		}
		return nil
	})
}

func TestLargeResponsesAreSplitWhereTheProtocolAllows(t *testing.T) {
	r := startWith(t, setup{change: func(c *serve.Config) { c.MaxResponseBytes = 50 }}, basicMesh())
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB)) // Envoy goes on after the first response of clusters
	c.subscribe(eds, "80|"+hostA, "80|"+hostB)
	c.ack(c.expect(eds, "+80|"+hostA))
	if p := r.status("pod"); p.GetSettled() || p.GetAcked() != nil {
		t.Errorf("half of the endpoints count as all: %v", p)
	}
	c.ack(c.expect(eds, "+80|"+hostB))
	r.acked("pod")
	w := r.sotw("sotw", "default")
	w.subscribe(eds, "80|"+hostA, "80|"+hostB)
	w.ack(w.expect(eds, "80|"+hostA))
	w.ack(w.expect(eds, "80|"+hostB))
	r.acked("sotw")
}

// TestClientsThatDoNotReadDelayNoOtherIdentity fills the budget with streams of one identity that do not read. Another
// identity is configured and sent changes while the clock stands still, so that those streams do not end. When the
// first identity reads, it may use its whole part of the budget.
func TestClientsThatDoNotReadDelayNoOtherIdentity(t *testing.T) {
	r := startWith(t, setup{change: func(c *serve.Config) { c.MaxUnsentBytes = 2 << 20 }}, bigMesh()).authenticated()
	attacker := metadata.AppendToOutgoingContext(context.Background(), callerHeader, "attacker")
	var reads []func() error
	for i := range serve.DefaultMinStreams {
		read, _ := r.lazyWith(attacker, fmt.Sprintf("attacker-%d", i))
		reads = append(reads, read)
	}
	testkit.Eventually(t, patience, func() error {
		if n := r.ADS.Waiting(); n < serve.DefaultMinStreams/2 {
			return fmt.Errorf("%d streams wait", n)
		}
		return nil
	})
	for i := range 2 {
		c := r.as("rightful", fmt.Sprintf("rightful-%d", i))
		c.subscribe(cds, "*")
		c.ack(c.next())
		c.subscribe(eds, "80|"+hostA)
		c.ack(c.expect(eds, "+80|"+hostA))
		r.edit(meshtest.Endpoints("default", hostA, 80, fmt.Sprintf("10.1.1.%d", i)))
		c.ack(c.expect(eds, "+80|"+hostA))
	}
	if n := r.ADS.Unsent(); n > 5<<18 {
		t.Errorf("the streams that do not read have %d KiB under way, want little more than half of the budget", n>>10)
	}
	for _, read := range reads {
		go func() { _ = read() }() // an error shows in the number of waiting streams
	}
	r.waiting(0)
}
