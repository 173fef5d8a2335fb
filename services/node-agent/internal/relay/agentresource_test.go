package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
)

const (
	agentType = "type.googleapis.com/agents"
	envoyType = "type.googleapis.com/envoys"
)

// taken records the values passed to Take, which returns an error for the value "bad".
type taken struct {
	mu     sync.Mutex
	values []string
}

func (t *taken) take(a *anypb.Any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values = append(t.values, string(a.GetValue()))
	if string(a.GetValue()) == "bad" {
		return errors.New("it is bad")
	}
	return nil
}

func (t *taken) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.values)
}

// requestsOf are the delta requests for a type.
func (s *xdsServer) requestsOf(typeURL string) []*discoveryv3.DeltaDiscoveryRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.delta), func(r *discoveryv3.DeltaDiscoveryRequest) bool { return r.GetTypeUrl() != typeURL })
}

// The request for the agent's resource follows Envoy's first one, Envoy gets no response to it, and after a reconnect
// the request states the version held.
func TestAgentResource(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "table", Version: "7", Resource: &anypb.Any{TypeUrl: agentType, Value: []byte("one")}}}
	server.once = agentType
	var got taken
	client := f.relay(Config{Addresses: []string{server.address},
		AgentResource: &AgentResource{TypeURL: agentType, Authority: "localhost", Take: got.take}})
	for round := range 2 {
		stream := f.open(client)
		for range 3 {
			testkit.NoError(t, stream.Subscribe(envoyType))
			resp, err := stream.Recv()
			if err != nil || resp.GetTypeUrl() != envoyType {
				t.Fatalf("Envoy received %v, %v", resp, err)
			}
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			if n := len(server.requestsOf(agentType)); n != 2*(round+1) {
				return errors.New("no acknowledgement")
			}
			return nil
		})
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
	requests := server.requestsOf(agentType)
	if first, ack := requests[0], requests[1]; len(first.GetInitialResourceVersions()) != 0 || ack.GetResponseNonce() != "n" ||
		ack.GetErrorDetail() != nil {
		t.Errorf("asked %v, acknowledged %v", first, ack)
	}
	if again := requests[2]; again.GetInitialResourceVersions()["table"] != "7" {
		t.Errorf("asked again with %v", again)
	}
	if values := got.all(); !slices.Equal(values, []string{"one", "one"}) {
		t.Errorf("took %q", values)
	}
}

// Each of two resources is asked for once on Envoy's stream, taken, and acknowledged; Envoy gets neither.
func TestTwoAgentResources(t *testing.T) {
	const otherType = "type.googleapis.com/others"
	f := newFixture(t)
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "x", Version: "7", Resource: &anypb.Any{TypeUrl: otherType, Value: []byte("one")}}}
	server.once = otherType
	var table, other taken
	stream := f.open(f.relay(Config{
		Addresses:     []string{server.address},
		AgentResource: &AgentResource{TypeURL: agentType, Authority: "localhost", Take: table.take},
		MoreResources: []*AgentResource{{TypeURL: otherType, Authority: "localhost", Take: other.take},
			{TypeURL: "never", Authority: "elsewhere"}},
	}))
	for range 3 {
		testkit.NoError(t, stream.Subscribe(envoyType))
		resp, err := stream.Recv()
		if err != nil || resp.GetTypeUrl() != envoyType {
			t.Fatalf("Envoy received %v, %v", resp, err)
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n, m := len(server.requestsOf(otherType)), len(server.requestsOf(agentType)); n != 2 || m == 0 {
			return fmt.Errorf("%d requests for one, %d for the other", n, m)
		}
		return nil
	})
	if got := other.all(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("took %q", got)
	}
	if n := len(server.requestsOf("never")); n > 0 {
		t.Errorf("%d requests of streams of another authority", n)
	}
}

func TestAgentResourceIsRejected(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.resources = []*discoveryv3.Resource{{Name: "table", Version: "8", Resource: &anypb.Any{TypeUrl: agentType, Value: []byte("bad")}}}
	server.once = agentType
	var got taken
	stream := f.open(f.relay(Config{Addresses: []string{server.address},
		AgentResource: &AgentResource{TypeURL: agentType, Authority: "localhost", Take: got.take}}))
	testkit.NoError(t, stream.Subscribe(envoyType))
	testkit.Must(stream.Recv())(t)
	go func() { _, _ = stream.Recv() }() // until the test ends
	testkit.Eventually(t, testkit.Patience, func() error {
		requests := server.requestsOf(agentType)
		if len(requests) < 2 {
			return errors.New("no answer")
		}
		if requests[1].GetErrorDetail().GetMessage() != "it is bad" {
			return errors.New(requests[1].String())
		}
		return nil
	})
}

// On a state-of-the-world stream it is the same. Streams of another authority carry no request for it.
func TestAgentResourceSotW(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	var got taken
	for _, authority := range []string{"localhost", "another"} {
		client := f.relay(Config{Addresses: []string{server.address},
			AgentResource: &AgentResource{TypeURL: sotwType, Authority: authority, Take: got.take}})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		stream := testkit.Must(adstest.OpenSotw(ctx, client, nil))(t)
		for range 2 {
			testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: envoyType}))
			if resp, err := stream.Recv(); err != nil || resp.GetTypeUrl() != envoyType {
				t.Errorf("Envoy received %v, %v", resp, err)
			}
		}
		cancel()
		if values := got.all(); !slices.Equal(values, []string{"sotw"}) {
			t.Errorf("took %q", values)
		}
	}
}

func TestTypeURL(t *testing.T) {
	pack := func(m proto.Message, chunk int) mem.BufferSlice {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var out mem.BufferSlice
		for part := range slices.Chunk(raw, chunk) {
			out = append(out, mem.SliceBuffer(part))
		}
		return out
	}
	big := &anypb.Any{TypeUrl: "inner", Value: make([]byte, 10_000)}
	for name, m := range map[string]proto.Message{
		"state of the world": &discoveryv3.DiscoveryResponse{VersionInfo: "1", Resources: []*anypb.Any{big, big}, Canary: true,
			TypeUrl: agentType, Nonce: "n"},
		"delta": &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "1",
			Resources: []*discoveryv3.Resource{{Name: "a", Resource: big}}, TypeUrl: agentType, RemovedResources: []string{"b"}},
		"nothing else": &discoveryv3.DeltaDiscoveryResponse{TypeUrl: agentType},
	} {
		for _, chunk := range []int{1, 7, 4096, 1 << 20} {
			if got := typeURL(pack(m, chunk)); got != agentType {
				t.Errorf("%s in pieces of %d: %q", name, chunk, got)
			}
		}
	}
	if got := typeURL(pack(&discoveryv3.DiscoveryResponse{VersionInfo: "1"}, 5)); got != "" {
		t.Errorf("none: %q", got)
	}
}

func FuzzTypeURL(f *testing.F) {
	raw, err := proto.Marshal(&discoveryv3.DiscoveryResponse{VersionInfo: "1", TypeUrl: agentType})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte{0x22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := typeURL(mem.BufferSlice{mem.SliceBuffer(raw)})
		m := &discoveryv3.DiscoveryResponse{}
		if proto.Unmarshal(raw, m) == nil && got != "" && len(got) > maxTypeURL {
			t.Errorf("%d bytes", len(got))
		}
	})
}
