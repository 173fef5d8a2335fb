package serve

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"weak"

	"google.golang.org/grpc/mem"

	"fairlead.dev/services/xds-server/internal/store"
)

const (
	// manyBlobs is from how many resources on a response is put together from runs.
	manyBlobs = 64
	// runMask makes a resource in 16 the last of its run, on average.
	chunkMask = 15
)

// runs joins the resources of large responses to longer pieces, because what gRPC does for each piece costs more than the bytes of most
// resources. Where a run ends is decided by the last resource in it alone, so responses that differ in a few resources have all other
// runs in common, and share them as long as one of them is on its way. It is safe for concurrent use.
type chunkCache struct {
	mu    sync.Mutex
	byKey map[chunkKey]weak.Pointer[chunk]
	// most is how many entries are there before dead ones are looked for.
	sweepAt int
}

// runKey tells runs apart, but for chance.
type chunkKey struct {
	hi, lo uint64
	sotw   bool
}

// run is the wire form of some resources.
type chunk struct {
	blobs []*store.Blob
	frame []byte
}

// append adds the fields of blobs, for a state-of-the-world response if world is true, to a response.
func (c *chunkCache) append(to mem.BufferSlice, blobs []*store.Blob, sotw bool) mem.BufferSlice {
	if len(blobs) < manyBlobs {
		for _, blob := range blobs {
			to = append(to, blobField(blob, sotw))
		}
		return to
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(blobs) > 0 {
		n := 0
		key := chunkKey{sotw: sotw}
		for ended := false; n < len(blobs) && !ended; n++ {
			h := blobs[n].Hash()
			var carry uint64
			key.lo, carry = bits.Add64(key.lo, binary.BigEndian.Uint64(h[8:]), 0)
			key.hi, _ = bits.Add64(key.hi, binary.BigEndian.Uint64(h[:8]), carry)
			ended = h[0]&chunkMask == 0
		}
		found := c.chunkOf(key, blobs[:n])
		to = append(to, mem.NewBuffer(&found.frame, found))
		blobs = blobs[n:]
	}
	return to
}

// of returns the run of blobs. The caller holds mu.
func (c *chunkCache) chunkOf(key chunkKey, blobs []*store.Blob) *chunk {
	if p, ok := c.byKey[key]; ok {
		if found := p.Value(); found != nil && slices.Equal(found.blobs, blobs) {
			return found
		}
	}
	size := 0
	for _, blob := range blobs {
		size += blobField(blob, key.sotw).Len()
	}
	found := &chunk{blobs: slices.Clone(blobs), frame: make([]byte, 0, max(size, marker))}
	for _, blob := range blobs {
		found.frame = append(found.frame, blobField(blob, key.sotw).ReadOnlyData()...)
	}
	if len(c.byKey) >= c.sweepAt {
		for k, p := range c.byKey {
			if p.Value() == nil {
				delete(c.byKey, k)
			}
		}
		c.sweepAt = 2*len(c.byKey) + manyBlobs
	}
	if c.byKey == nil {
		c.byKey = map[chunkKey]weak.Pointer[chunk]{}
	}
	c.byKey[key] = weak.Make(found)
	return found
}

// run is the "pool" of its buffers, by which they keep it: nothing is put back, for others may use the same bytes.

// Get implements mem.BufferPool; nobody calls it.
func (*chunk) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool.
func (*chunk) Put(*[]byte) {}

func blobField(blob *store.Blob, sotw bool) mem.Buffer {
	if sotw {
		return blob.WorldField()
	}
	return blob.DeltaField()
}
