package trustwatch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// relay is an xds-server that sends what the test gives it, and hands the requests out.
type relay struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	send     chan *discovery.DeltaDiscoveryResponse
	requests chan *discovery.DeltaDiscoveryRequest
}

func (r *relay) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			r.requests <- m
		}
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case m := <-r.send:
			if m == nil {
				return status.Error(codes.Unavailable, "ends")
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

func (r *relay) bundle(nonce string, values ...string) {
	m := &discovery.DeltaDiscoveryResponse{TypeUrl: contract.SignedBundleType, Nonce: nonce}
	for _, v := range values {
		m.Resources = append(m.Resources, &discovery.Resource{Name: "signedbundle", Resource: &anypb.Any{Value: []byte(v)}})
	}
	r.send <- m
}

// answer waits for the answer of a response, and reports whether it is an ACK.
func (r *relay) answer(t *testing.T, nonce string, want bool) {
	t.Helper()
	m := <-r.requests
	if m.GetResponseNonce() != nonce || (m.GetErrorDetail() == nil) != want {
		t.Fatalf("answer %v, want one of %s, ACK %v", m, nonce, want)
	}
}

// TestABundleThatIsPassedOnIsAcknowledgedOnceItIsInUse: what is refused is a NACK at once, what is superseded before it
// is in use is never acknowledged, and a stream that ends is opened again.
func TestABundleThatIsPassedOnIsAcknowledgedOnceItIsInUse(t *testing.T) {
	r := &relay{send: make(chan *discovery.DeltaDiscoveryResponse), requests: make(chan *discovery.DeltaDiscoveryRequest, 10)}
	conn := testkit.ServeInMemory(t, func(s *grpc.Server) { discovery.RegisterAggregatedDiscoveryServiceServer(s, r) })
	taken := make(chan string, 10)
	var uses [4]chan error // of one bundle each
	for i := range uses {
		uses[i] = make(chan error)
	}
	var used atomic.Int32
	p, err := NewPassed(PassedConfig{
		XDS: discovery.NewAggregatedDiscoveryServiceClient(conn), Node: "sidecar~~keeper.remote~remote.svc",
		Take: func(_ context.Context, a *anypb.Any) error {
			if string(a.GetValue()) == "forged" {
				return errors.New("signed by nobody")
			}
			taken <- string(a.GetValue())
			return nil
		},
		InUse: func(ctx context.Context) error {
			select {
			case err := <-uses[used.Add(1)-1]:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Metrics: "test", Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(),
	})
	testkit.NoError(t, err)
	testkit.Background(t, p.Run)
	if m := <-r.requests; m.GetNode().GetId() != "sidecar~~keeper.remote~remote.svc" || m.GetTypeUrl() != contract.SignedBundleType {
		t.Fatalf("first request %v", m)
	}
	r.bundle("0") // the ca has sent none yet
	uses[0] <- nil
	r.answer(t, "0", true)
	r.bundle("1", "one")
	if got := <-taken; got != "one" || len(r.requests) != 0 {
		t.Fatalf("%s is taken, %d answers before it is in use", got, len(r.requests))
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if used.Load() != 2 {
			return errors.New("nobody waits for the use of the first")
		}
		return nil
	})
	r.bundle("2", "two")
	if got := <-taken; got != "two" {
		t.Fatal(got)
	}
	uses[2] <- nil
	r.answer(t, "2", true)
	r.bundle("3", "forged")
	r.answer(t, "3", false)
	r.bundle("4", "one", "two")
	r.answer(t, "4", false)
	r.bundle("5", "three")
	uses[3] <- errors.New("cannot be written")
	r.answer(t, "5", false)
	r.send <- nil
	if m := <-r.requests; m.GetNode() == nil {
		t.Fatalf("the stream is not opened again: %v", m)
	}
}
