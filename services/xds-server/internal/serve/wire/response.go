package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"fairlead.dev/services/xds-server/internal/store"
)

// SmallResponse is the size up to which a response counts as taken by the network when gRPC has accepted it, because it
// fits the write quota of a stream.
const SmallResponse = 64 << 10

// Response is a response whose resources are in the store: they are sent from there, and neither marshalled nor copied
// for each stream.
type Response struct {
	Delta          bool
	TypeURL, Nonce string
	// Version is the version_info of a sotw response, the system_version_info of a delta one.
	Version string
	Blobs   []*store.Blob
	// Removed are the names of resources that are gone. Missing are virtual hosts that do not exist: Envoy answers the
	// request that waits for one. A sotw response has neither.
	Removed, Missing []string
	// Chunks joins the resources of large responses.
	Chunks *Chunks
	// Taken is called when the network has taken the response, or when the stream has ended; nil if nobody asks.
	Taken func()
}

// Field numbers of the responses, which the two variants have in common but for deltaRemoved, and of Resource.
const (
	responseVersion   = 1
	responseResources = 2
	responseTypeURL   = 4
	responseNonce     = 5
	deltaRemoved      = 6
	resourceName      = 3
	resourceAliases   = 4
)

// encode encodes the response. The codec calls it.
func (r *Response) encode() mem.BufferSlice {
	size := 64 + len(r.TypeURL) + len(r.Version)
	for _, name := range r.Removed {
		size += len(name) + 8
	}
	for _, name := range r.Missing {
		size += 2*len(name) + 24
	}
	head := make([]byte, 0, size)
	head = appendText(head, responseVersion, r.Version)
	head = appendText(head, responseTypeURL, r.TypeURL)
	head = appendText(head, responseNonce, r.Nonce)
	for _, name := range r.Removed {
		head = appendText(head, deltaRemoved, name)
	}
	for _, name := range r.Missing { // a Resource without content, with its name as an alias
		text := 1 + protowire.SizeBytes(len(name))
		head = protowire.AppendVarint(protowire.AppendTag(head, responseResources, protowire.BytesType), uint64(2*text)) //nolint:gosec // a size
		for _, field := range []protowire.Number{resourceName, resourceAliases} {
			head = protowire.AppendString(protowire.AppendTag(head, field, protowire.BytesType), name)
		}
	}
	room := min(len(r.Blobs), manyBlobs) + len(r.Blobs)/8 + 2
	buffers := append(make(mem.BufferSlice, 0, room), mem.SliceBuffer(head))
	buffers = r.Chunks.append(buffers, r.Blobs, !r.Delta)
	if r.Taken == nil {
		return buffers
	}
	end := make([]byte, 0, marker)
	return append(buffers, mem.NewBuffer(&end, pool(r.Taken)))
}

func appendText(to []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

// marker is the least capacity of a buffer that gRPC returns to its pool.
const marker = 1<<10 + 1

// pool is the mem.BufferPool of an empty buffer after the response. When gRPC frees it, the network has taken
// everything before it.
type pool func()

// Get implements mem.BufferPool; nobody calls it.
func (pool) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool.
func (taken pool) Put(*[]byte) { taken() }
