package mcpserver

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// frame is a DiscoveryResponse whose resources are encoded already.
type frame struct {
	state      *state
	url, nonce string
}

// Codec is the codec of the gRPC server (grpc.ForceServerCodecV2): it writes frames without copying their resources.
// All other messages are protobuf's.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2. The parts of a message may follow each other in any order.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	var rest []byte
	for _, part := range []struct {
		field protowire.Number
		text  string
	}{{fieldVersion, f.state.version}, {fieldType, f.url}, {fieldNonce, f.nonce}} {
		rest = protowire.AppendString(protowire.AppendTag(rest, part.field, protowire.BytesType), part.text)
	}
	return mem.BufferSlice{mem.SliceBuffer(f.state.encoded()), mem.SliceBuffer(rest)}, nil
}
