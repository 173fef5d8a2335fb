package serve

import (
	"bytes"
	"fmt"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/mem"

	"fairlead.dev/services/xds-server/internal/store"
)

func someBlobs(t testing.TB, n int) []*store.Blob {
	t.Helper()
	s := store.New()
	var blobs []*store.Blob
	for i := range n {
		name := fmt.Sprintf("cluster-%04d", i)
		blob, err := s.Put(resource.ClusterType, name, &cluster.Cluster{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, blob)
	}
	return blobs
}

func TestChunksHaveTheBytesOfTheirResources(t *testing.T) {
	blobs := someBlobs(t, 500)
	var r chunkCache
	for _, n := range []int{0, 1, manyBlobs - 1, manyBlobs, 500} {
		for _, sotw := range []bool{false, true} {
			var want []byte
			for _, blob := range blobs[:n] {
				want = append(want, blobField(blob, sotw).ReadOnlyData()...)
			}
			if got := r.append(nil, blobs[:n], sotw).Materialize(); !bytes.Equal(got, want) {
				t.Errorf("%d resources, sotw %v: %d bytes that are not the %d of the resources", n, sotw, len(got), len(want))
			}
		}
	}
}

func TestResponsesThatDifferInOneResourceShareChunks(t *testing.T) {
	blobs := someBlobs(t, 500)
	var r chunkCache
	first := r.append(nil, blobs, false)
	if len(first) < 10 || len(first) > 100 {
		t.Fatalf("%d runs of 500 resources", len(first))
	}
	seen := map[*byte]bool{}
	for _, b := range first {
		seen[&b.ReadOnlyData()[0]] = true
	}
	second := r.append(nil, append(blobs[:200:200], blobs[201:]...), false)
	own := 0
	for _, b := range second {
		if !seen[&b.ReadOnlyData()[0]] {
			own++
		}
	}
	if own == 0 || own > 2 {
		t.Errorf("%d of %d runs are not shared, want those around the resource that is missing", own, len(second))
	}
	for _, sent := range []mem.BufferSlice{first, second} {
		sent.Free()
	}
}

// BenchmarkLargeResponse encodes the first response of a stream.
func BenchmarkLargeResponse(b *testing.B) {
	blobs := someBlobs(b, 1000)
	var r chunkCache
	b.ReportAllocs()
	for b.Loop() {
		r.append(nil, blobs, false).Free()
	}
}
