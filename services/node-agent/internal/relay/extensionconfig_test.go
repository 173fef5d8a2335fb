package relay

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"fairlead.dev/pkg/testkit"
)

// answers gives one message.
type answers struct {
	messageStream
	message []byte
}

func (a answers) RecvMsg(m any) error {
	m.(*frame).data = bytesFrame(a.message).data //nolint:forcetypeassert // the relay receives no other
	return nil
}

func TestEnvoyHearsOfNoExtensionConfigThatIsGone(t *testing.T) {
	received := func(message []byte) []byte {
		f := &frame{}
		testkit.NoError(t, extensionKeeper{answers{message: message}}.RecvMsg(f))
		return f.data.Materialize()
	}
	for url, removed := range map[string][]string{resource.ExtensionConfigType: nil, resource.ListenerType: {"a", "b"}} {
		resp := &discoveryv3.DeltaDiscoveryResponse{
			SystemVersionInfo: "1/2", TypeUrl: url, Nonce: "n", RemovedResources: []string{"a", "b"},
			Resources: []*discoveryv3.Resource{{Name: "c", Version: "1"}},
		}
		got := &discoveryv3.DeltaDiscoveryResponse{}
		testkit.NoError(t, proto.Unmarshal(received(testkit.Must(proto.Marshal(resp))(t)), got))
		resp.RemovedResources = removed
		if d := cmp.Diff(resp, got, protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", url, d)
		}
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: resource.ExtensionConfigType}
	broken := append(testkit.Must(proto.Marshal(resp))(t), 0xff)
	if got := received(broken); string(got) != string(broken) {
		t.Errorf("a message that is not valid becomes %q", got)
	}
}
