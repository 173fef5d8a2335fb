package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
)

// adopter is an AgentResource whose versions wait to be let go, or to be superseded.
type adopter struct {
	// begun receives a value when Adopt has it; result is what ends the call.
	begun      chan string
	result     chan error
	superseded atomic.Int64
}

func (a *adopter) resource(typeURL, authority string) []*AgentResource {
	a.begun, a.result = make(chan string, 100), make(chan error)
	return []*AgentResource{{TypeURL: typeURL, Authority: authority, Adopt: func(ctx context.Context, r *anypb.Any) error {
		a.begun <- string(r.GetValue())
		select {
		case err := <-a.result:
			return err
		case <-ctx.Done():
			a.superseded.Add(1)
			return ctx.Err()
		}
	}}}
}

func (a *adopter) wantBegun(t *testing.T, value string) {
	t.Helper()
	select {
	case got := <-a.begun:
		if got != value {
			t.Fatalf("adopts %q, want %q", got, value)
		}
	case <-time.After(testkit.Patience):
		t.Fatalf("%q is not adopted", value)
	}
}

// While a resource is being adopted, Envoy's stream goes on. The ACK follows the adoption, and until then the version
// does not count as held.
func TestAdoptionKeepsNobodyWaiting(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "bundle", Version: "7", Resource: &anypb.Any{TypeUrl: agentType, Value: []byte("one")}}}
	server.once = agentType
	var a adopter
	client := f.relay(Config{Addresses: []string{server.address}, MoreResources: a.resource(agentType, "localhost")})
	exchange := func(stream *adstest.Delta) {
		t.Helper()
		testkit.NoError(t, stream.Subscribe(envoyType))
		resp, err := stream.Recv()
		if err != nil || resp.GetTypeUrl() != envoyType {
			t.Fatalf("Envoy received %v, %v", resp, err)
		}
	}
	stream := f.open(client)
	exchange(stream)
	go func() { a.wantBegun(t, "one") }()
	for range 20 {
		exchange(stream)
	}
	if n := len(server.requestsOf(agentType)); n != 1 {
		t.Errorf("%d requests while the adoption lasts, want the first one alone", n)
	}
	testkit.NoError(t, stream.CloseSend())
	testkit.Eventually(t, testkit.Patience, func() error {
		if a.superseded.Load() != 1 {
			return errors.New("the adoption goes on after its stream")
		}
		return nil
	})

	stream = f.open(client)
	exchange(stream)
	go func() { _ = stream.Drain() }()
	a.wantBegun(t, "one")
	if again := server.requestsOf(agentType)[1]; len(again.GetInitialResourceVersions()) != 0 {
		t.Errorf("a version that was not adopted is stated as held: %v", again)
	}
	a.result <- nil
	testkit.Eventually(t, testkit.Patience, func() error {
		requests := server.requestsOf(agentType)
		if len(requests) != 3 || requests[2].GetResponseNonce() != "n" || requests[2].GetErrorDetail() != nil {
			return fmt.Errorf("requests %v", requests)
		}
		return nil
	})
}

// Of several versions that come while one is being adopted, that one ends, and the newest is next.
func TestNewerVersionEndsTheAdoptionBefore(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta ", delta), func(t *testing.T) {
			sent := make(chan any, 10)
			var a adopter
			s := &agentStream{messageStream: sink(sent), relay: &Relay{}, resource: a.resource(agentType, "")[0], delta: delta, ctx: t.Context()}
			give := func(value string) {
				if delta {
					s.adopt(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: agentType, Nonce: value,
						Resources: []*discoveryv3.Resource{{Name: "bundle", Version: value, Resource: &anypb.Any{Value: []byte(value)}}}})
					return
				}
				s.adopt(&discoveryv3.DiscoveryResponse{TypeUrl: agentType, Nonce: value, Resources: []*anypb.Any{{Value: []byte(value)}}})
			}
			want := func(nonce, problem string) {
				t.Helper()
				m := (<-sent).(interface {
					GetResponseNonce() string
				})
				var message string
				switch m := m.(type) {
				case *discoveryv3.DeltaDiscoveryRequest:
					message = m.GetErrorDetail().GetMessage()
				case *discoveryv3.DiscoveryRequest:
					message = m.GetErrorDetail().GetMessage()
				}
				if m.GetResponseNonce() != nonce || message != problem {
					t.Errorf("answered %v, want nonce %s and %q", m, nonce, problem)
				}
			}
			give("1")
			a.wantBegun(t, "1")
			give("2")
			a.wantBegun(t, "2")
			a.result <- errors.New("it is bad")
			want("2", "it is bad")
			give("3")
			a.wantBegun(t, "3")
			a.result <- nil
			want("3", "")
			if n := a.superseded.Load(); n != 1 || len(sent) != 0 {
				t.Errorf("%d ended before their time, %d answers more", n, len(sent))
			}
			if held := s.relay.heldVersions(agentType); delta && (len(held) != 1 || held["bundle"] != "3") {
				t.Errorf("holds %v", held)
			}
		})
	}
}

// sink is a stream to an xds-server that takes what is sent.
type sink chan any

func (s sink) SendMsg(m any) error { s <- m; return nil }
func (s sink) RecvMsg(any) error   { return errors.New("nothing comes") }

// A resource without an authority is asked for on the streams of gRPC programs, too, but not on one for a debug type.
func TestResourceOfEveryStream(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	var a adopter
	client := f.relay(Config{Addresses: []string{server.address}, MoreResources: a.resource(sotwType, "")})
	for _, first := range []string{debugType + "/syncz", envoyType} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		stream := testkit.Must(adstest.OpenSotw(ctx, client, nil))(t)
		testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: first}))
		if resp, err := stream.Recv(); err != nil || resp.GetTypeUrl() != first {
			t.Errorf("received %v, %v", resp, err)
		}
		if first == envoyType {
			a.wantBegun(t, "sotw")
		}
		cancel()
	}
	if len(a.begun) > 0 {
		t.Error("asked on a debug stream")
	}
}
