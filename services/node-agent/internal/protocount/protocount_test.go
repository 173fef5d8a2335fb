package protocount_test

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/node-agent/internal/protocount"
)

func TestField(t *testing.T) {
	raw, err := proto.Marshal(&discoveryv3.DiscoveryResponse{VersionInfo: "1", Resources: []*anypb.Any{{}, {Value: []byte("abc")}, {}},
		TypeUrl: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		message []byte
		want    int
	}{"a message": {raw, 3}, "nothing": {nil, 0}, "no protobuf": {[]byte("\xff\xff\xff"), 0}, "cut short": {raw[:8], 1}} {
		if got := protocount.Field(tc.message, 2); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// FuzzField: a message that can be decoded has no more elements than were counted.
func FuzzField(f *testing.F) {
	f.Add([]byte("\x12\x00\x12\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		resp := &discoveryv3.DiscoveryResponse{}
		if n := protocount.Field(raw, 2); proto.Unmarshal(raw, resp) == nil && len(resp.GetResources()) > n {
			t.Errorf("%d resources, %d counted", len(resp.GetResources()), n)
		}
	})
}
