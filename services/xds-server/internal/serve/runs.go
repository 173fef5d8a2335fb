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
	runMask = 15
)

// runs joins the resources of large responses to longer pieces, because what gRPC does for each piece costs more than the bytes of most
// resources. Where a run ends is decided by the last resource in it alone, so responses that differ in a few resources have all other
// runs in common, and share them as long as one of them is on its way. It is safe for concurrent use.
type runs struct {
	mu   sync.Mutex
	held map[runKey]weak.Pointer[run]
	// most is how many entries are there before dead ones are looked for.
	most int
}

// runKey tells runs apart, but for chance.
type runKey struct {
	hi, lo uint64
	world  bool
}

// run is the wire form of some resources.
type run struct {
	blobs []*store.Blob
	frame []byte
}

// append adds the fields of blobs, for a state-of-the-world response if world is true, to a response.
func (r *runs) append(to mem.BufferSlice, blobs []*store.Blob, world bool) mem.BufferSlice {
	if len(blobs) < manyBlobs {
		for _, b := range blobs {
			to = append(to, wireField(b, world))
		}
		return to
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(blobs) > 0 {
		n := 0
		key := runKey{world: world}
		for ended := false; n < len(blobs) && !ended; n++ {
			h := blobs[n].Hash()
			var carry uint64
			key.lo, carry = bits.Add64(key.lo, binary.BigEndian.Uint64(h[8:]), 0)
			key.hi, _ = bits.Add64(key.hi, binary.BigEndian.Uint64(h[:8]), carry)
			ended = h[0]&runMask == 0
		}
		joined := r.of(key, blobs[:n])
		to = append(to, mem.NewBuffer(&joined.frame, joined))
		blobs = blobs[n:]
	}
	return to
}

// of returns the run of blobs. The caller holds mu.
func (r *runs) of(key runKey, blobs []*store.Blob) *run {
	if p, ok := r.held[key]; ok {
		if joined := p.Value(); joined != nil && slices.Equal(joined.blobs, blobs) {
			return joined
		}
	}
	size := 0
	for _, b := range blobs {
		size += wireField(b, key.world).Len()
	}
	joined := &run{blobs: slices.Clone(blobs), frame: make([]byte, 0, max(size, marker))}
	for _, b := range blobs {
		joined.frame = append(joined.frame, wireField(b, key.world).ReadOnlyData()...)
	}
	if len(r.held) >= r.most {
		for k, p := range r.held {
			if p.Value() == nil {
				delete(r.held, k)
			}
		}
		r.most = 2*len(r.held) + manyBlobs
	}
	if r.held == nil {
		r.held = map[runKey]weak.Pointer[run]{}
	}
	r.held[key] = weak.Make(joined)
	return joined
}

// run is the "pool" of its buffers, by which they keep it: nothing is put back, for others may use the same bytes.

// Get implements mem.BufferPool; nobody calls it.
func (*run) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool.
func (*run) Put(*[]byte) {}

func wireField(b *store.Blob, world bool) mem.Buffer {
	if world {
		return b.SotwField()
	}
	return b.DeltaField()
}
