package wire

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
	// manyBlobs is the number of resources from which a response is put together from chunks.
	manyBlobs = 64
	// chunkMask makes one resource in 16 the last of its chunk, on average.
	chunkMask = 15
)

// Chunks joins the encoded resources of large responses to chunks, because gRPC spends more on each buffer than
// most resources have bytes. Whether a resource ends a chunk depends on its hash alone, so responses that differ in a
// few resources have all other chunks in common. They share them while one of the responses is being sent. It is safe
// for concurrent use: mu is held to look a chunk up, not while resources are hashed or copied.
type Chunks struct {
	mu    sync.Mutex
	byKey map[chunkKey]weak.Pointer[chunk]
	// sweepAt is the number of entries at which collected ones are deleted.
	sweepAt int
}

// chunkKey is the sum of the resources' hashes; chunkOf compares the resources besides.
type chunkKey struct {
	hi, lo uint64
	sotw   bool
}

// chunk is the encoded form of some resources. The first response that needs frame fills it; others wait for that.
type chunk struct {
	blobs  []*store.Blob
	filled sync.Once
	frame  []byte
}

// append adds the encoded resources to a response, as fields of a sotw response or of a delta one.
func (c *Chunks) append(to mem.BufferSlice, blobs []*store.Blob, sotw bool) mem.BufferSlice {
	if len(blobs) < manyBlobs {
		for _, blob := range blobs {
			to = append(to, blobField(blob, sotw))
		}
		return to
	}
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

// chunkOf returns the chunk of these resources, from the cache if it is there.
func (c *Chunks) chunkOf(key chunkKey, blobs []*store.Blob) *chunk {
	found := c.lookUp(key, blobs)
	found.filled.Do(func() { found.fill(key.sotw) })
	return found
}

// lookUp returns the chunk of these resources, which may not be filled yet. It makes one if there is none.
func (c *Chunks) lookUp(key chunkKey, blobs []*store.Blob) *chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.byKey[key]; ok {
		if found := p.Value(); found != nil && slices.Equal(found.blobs, blobs) {
			return found
		}
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
	made := &chunk{blobs: slices.Clone(blobs)}
	c.byKey[key] = weak.Make(made)
	return made
}

// fill copies the resources into frame, once.
func (r *chunk) fill(sotw bool) {
	size := 0
	for _, blob := range r.blobs {
		size += blobField(blob, sotw).Len()
	}
	r.frame = make([]byte, 0, max(size, marker))
	for _, blob := range r.blobs {
		r.frame = append(r.frame, blobField(blob, sotw).ReadOnlyData()...)
	}
}

// A chunk is the mem.BufferPool of its buffers, so that they keep it reachable. Nothing is ever reused: other responses
// may use the same bytes.

// Get implements mem.BufferPool; nobody calls it.
func (*chunk) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool.
func (*chunk) Put(*[]byte) {}

func blobField(blob *store.Blob, sotw bool) mem.Buffer {
	if sotw {
		return blob.SotwField()
	}
	return blob.DeltaField()
}
