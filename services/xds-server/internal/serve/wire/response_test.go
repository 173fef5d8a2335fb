package wire

import (
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// TestResponseIsTheMessage encodes responses and reads them with protobuf's own decoder.
func TestResponseIsTheMessage(t *testing.T) {
	blobs := someBlobs(t, 3*manyBlobs)
	for _, n := range []int{0, 1, len(blobs)} {
		r := &Response{
			TypeURL: "type", Nonce: "7", Version: "v", Blobs: blobs[:n], Chunks: &Chunks{}, Delta: true,
			Removed: []string{"gone"}, Missing: []string{"80/none:80", ""},
		}
		delta := &discovery.DeltaDiscoveryResponse{TypeUrl: "type", Nonce: "7", SystemVersionInfo: "v", RemovedResources: r.Removed}
		for _, name := range r.Missing {
			delta.Resources = append(delta.Resources, &discovery.Resource{Name: name, Aliases: []string{name}})
		}
		sotw := &discovery.DiscoveryResponse{TypeUrl: "type", Nonce: "7", VersionInfo: "v"}
		for _, blob := range blobs[:n] {
			delta.Resources = append(delta.Resources, blob.Resource)
			sotw.Resources = append(sotw.Resources, blob.Resource.GetResource())
		}
		expect(t, r, delta, &discovery.DeltaDiscoveryResponse{})
		r.Delta, r.Removed, r.Missing = false, nil, nil
		expect(t, r, sotw, &discovery.DiscoveryResponse{})
	}
}

func expect(t *testing.T, r *Response, want, got proto.Message) {
	t.Helper()
	taken := 0
	r.Taken = func() { taken++ }
	data, err := Codec().Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(data.Materialize(), got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if taken != 0 {
		t.Error("taken before gRPC has freed it")
	}
	if data.Free(); taken != 1 {
		t.Errorf("taken %d times", taken)
	}
}
