package serve

import (
	"sync/atomic"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// smallResponse is the size up to which a response counts as taken by the network when gRPC has accepted it, because it
// fits the write quota of a stream.
const smallResponse = 64 << 10

// Codec is the codec for gRPC servers that a Server is registered with (grpc.ForceServerCodecV2). With it, the
// resources of a response are sent from the store's memory and are neither marshalled nor copied for each stream.
// Another codec works too, at that cost.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(interface{ encode() mem.BufferSlice }); ok {
		return f.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*deltaRequest); ok {
		return r.decode(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// deltaFrame is a delta response whose resources are still in the store. To another codec it is an ordinary message.
type deltaFrame struct {
	*discovery.DeltaDiscoveryResponse
	out *response
}

// ProtoReflect implements proto.Message.
func (f *deltaFrame) ProtoReflect() protoreflect.Message {
	m := f.DeltaDiscoveryResponse
	if len(m.GetResources()) == 0 {
		for _, name := range f.out.missing {
			m.Resources = append(m.Resources, notFound(name))
		}
		for _, blob := range f.out.blobs {
			m.Resources = append(m.Resources, blob.Resource)
		}
	}
	return m.ProtoReflect()
}

// Field numbers of the responses and of Resource.
const (
	deltaSystemVersion = 1
	deltaTypeURL       = 4
	deltaNonce         = 5
	deltaRemoved       = 6
	sotwVersionInfo    = 1
	sotwTypeURL        = 4
	sotwNonce          = 5
	responseResources  = 2
	resourceName       = 3
	resourceAliases    = 4
)

func (f *deltaFrame) encode() mem.BufferSlice {
	m, out := f.DeltaDiscoveryResponse, f.out
	size := 64 + len(m.GetTypeUrl()) + len(m.GetSystemVersionInfo())
	for _, name := range m.GetRemovedResources() {
		size += len(name) + 8
	}
	for _, name := range out.missing {
		size += 2*len(name) + 24
	}
	head := make([]byte, 0, size)
	head = appendText(head, deltaSystemVersion, m.GetSystemVersionInfo())
	head = appendText(head, deltaTypeURL, m.GetTypeUrl())
	head = appendText(head, deltaNonce, m.GetNonce())
	for _, name := range m.GetRemovedResources() {
		head = appendText(head, deltaRemoved, name)
	}
	for _, name := range out.missing {
		text := 1 + protowire.SizeBytes(len(name))
		head = protowire.AppendVarint(protowire.AppendTag(head, responseResources, protowire.BytesType), uint64(2*text)) //nolint:gosec // a size
		head = appendText(appendText(head, resourceName, name), resourceAliases, name)
	}
	return out.body(head, false)
}

// sotwFrame is a sotw response whose resources are still in the store.
type sotwFrame struct {
	*discovery.DiscoveryResponse
	out *response
}

// ProtoReflect implements proto.Message.
func (f *sotwFrame) ProtoReflect() protoreflect.Message {
	m := f.DiscoveryResponse
	if len(m.GetResources()) == 0 {
		m.Resources = make([]*anypb.Any, 0, len(f.out.blobs))
		for _, blob := range f.out.blobs {
			m.Resources = append(m.Resources, blob.Resource.GetResource())
		}
	}
	return m.ProtoReflect()
}

func (f *sotwFrame) encode() mem.BufferSlice {
	m, out := f.DiscoveryResponse, f.out
	head := make([]byte, 0, 64+len(m.GetTypeUrl())+len(m.GetVersionInfo()))
	head = appendText(head, sotwVersionInfo, m.GetVersionInfo())
	head = appendText(head, sotwTypeURL, m.GetTypeUrl())
	head = appendText(head, sotwNonce, m.GetNonce())
	return out.body(head, true)
}

// body encodes the whole response: head, then the resources.
func (r *response) body(head []byte, sotw bool) mem.BufferSlice {
	room := min(len(r.blobs), manyBlobs) + len(r.blobs)/8 + 2
	buffers := append(make(mem.BufferSlice, 0, room), mem.SliceBuffer(head))
	return r.watched(r.stream.server.chunks.append(buffers, r.blobs, sotw))
}

func appendText(to []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

// notFound tells an on-demand client that a virtual host does not exist. Envoy then answers the request that waits for
// it.
func notFound(name string) *discovery.Resource {
	return &discovery.Resource{Name: name, Aliases: []string{name}}
}

// watched appends an empty buffer to a large response. When gRPC frees it, the network has taken everything before it.
func (r *response) watched(buffers mem.BufferSlice) mem.BufferSlice {
	if r.size <= smallResponse {
		return buffers
	}
	end := make([]byte, 0, marker)
	r.marked = true
	r.stream.largeSendBegan()
	return append(buffers, mem.NewBuffer(&end, pool{r}))
}

// marker is the least capacity of a buffer that gRPC returns to its pool.
const marker = 1<<10 + 1

// pool is the mem.BufferPool of the marker buffer.
type pool struct{ r *response }

// Get implements mem.BufferPool; nobody calls it.
func (pool) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool. gRPC calls it when the network has taken the response, or when the stream has ended.
func (p pool) Put(*[]byte) {
	p.r.stream.largeSendTaken()
	p.r.release()
}

// budgetBytes are the bytes that a response has reserved in the budget.
type budgetBytes struct {
	unsent atomic.Int64
	stream *stream
	// marked is true if the end marker of the encoded response releases the bytes.
	marked bool
}

// release gives the bytes back. Calls after the first do nothing.
func (c *budgetBytes) release() {
	if size := c.unsent.Swap(0); size > 0 {
		c.stream.server.unsent.GiveBack(&c.stream.account.Unsent, int(size))
	}
}
