package relay

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// FuzzFrame gives the relay responses of anybody's making, delta and state of the world, in pieces as they come from
// the network. It finds the type that decoding finds, and the agent decodes and answers its own within their bounds.
func FuzzFrame(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryResponse{TypeUrl: agentType, Nonce: "n",
			Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: &anypb.Any{Value: []byte("x")}}}},
		&discoveryv3.DiscoveryResponse{TypeUrl: agentType, VersionInfo: "1", Resources: []*anypb.Any{{Value: []byte("bad")}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint16(3))
	}
	f.Add([]byte{0x22, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint16(1))
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		at := int(cut) % (len(raw) + 1)
		found := typeURL(mem.BufferSlice{mem.SliceBuffer(raw[:at]), mem.SliceBuffer(raw[at:])})
		for _, delta := range []bool{true, false} {
			taken := 0
			r := &Relay{agentResource: &AgentResource{TypeURL: agentType, Take: func(*anypb.Any) error { taken++; return nil }}}
			stream := &agentStream{relay: r, resource: r.agentResource, delta: delta}
			resp, err := stream.decode(raw)
			if err != nil {
				continue
			}
			reply := stream.take(t.Context(), resp)
			if taken > maxAgentResources || len(r.held) > 1 || len(r.held[agentType]) > maxAgentResources {
				t.Fatalf("%d resources taken, %d versions held", taken, len(r.held[agentType]))
			}
			// The last type_url counts for protobuf, the first one for the relay: a sender that writes two of them
			// only confuses itself.
			var url string
			switch m := reply.(type) {
			case *discoveryv3.DeltaDiscoveryRequest:
				url = m.GetTypeUrl()
			case *discoveryv3.DiscoveryRequest:
				url = m.GetTypeUrl()
			}
			if found == "" && url != "" && len(url) <= maxTypeURL {
				t.Fatalf("decoded as %q, found none", url)
			}
		}
	})
}
