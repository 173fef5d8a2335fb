package wire

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"
	"weak"

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
	var r Chunks
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
	var r Chunks
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

func TestAResponseWaitsOnlyForChunksThatItHas(t *testing.T) {
	blobs := someBlobs(t, 1000)
	var r Chunks
	first := r.append(nil, blobs[:500], false)
	// Somebody copies the first chunk and does not get on.
	var slow *chunk
	for key, p := range r.byKey {
		if c := p.Value(); c.blobs[0] == blobs[0] {
			slow = &chunk{blobs: c.blobs}
			r.byKey[key] = weak.Make(slow)
		}
	}
	started, goOn := make(chan struct{}), make(chan struct{})
	go slow.filled.Do(func() { close(started); <-goOn; slow.fill(false) })
	<-started
	same := make(chan mem.BufferSlice)
	go func() { same <- r.append(nil, blobs[:500], false) }()
	other := make(chan mem.BufferSlice)
	go func() { other <- r.append(nil, blobs[500:], false) }()
	select {
	case b := <-other:
		b.Free()
	case <-time.After(10 * time.Second):
		t.Fatal("a response of other resources waits for a chunk that it does not have")
	}
	close(goOn)
	second := <-same
	if !bytes.Equal(second.Materialize(), first.Materialize()) {
		t.Error("the response that waited has other bytes")
	}
	if &second[0].ReadOnlyData()[0] != &slow.frame[0] {
		t.Error("the response that waited has made its first chunk again")
	}
	second.Free()
	first.Free()
}

func TestResponsesAtTheSameTimeShareChunks(t *testing.T) {
	blobs := someBlobs(t, 500)
	var r Chunks
	var mu sync.Mutex
	var all []mem.BufferSlice
	seen := map[*byte]bool{}
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			got := r.append(nil, blobs, false)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, got)
			for _, b := range got {
				seen[&b.ReadOnlyData()[0]] = true
			}
		})
	}
	done.Wait()
	if len(seen) != len(all[0]) {
		t.Errorf("%d responses of the same %d chunks have %d", len(all), len(all[0]), len(seen))
	}
	for _, b := range all {
		b.Free()
	}
}

// BenchmarkLargeResponse encodes the first response of a stream.
func BenchmarkLargeResponse(b *testing.B) {
	blobs := someBlobs(b, 1000)
	var r Chunks
	b.ReportAllocs()
	for b.Loop() {
		r.append(nil, blobs, false).Free()
	}
}
