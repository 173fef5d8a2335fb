// Package wire has the messages of an ADS stream in the form in which they are received and sent: requests whose long
// lists of names and versions are decoded only if somebody needs them, and responses whose resources stay in the
// store's memory. Both are the same for the two variants of the protocol, delta and state of the world (sotw).
package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is the codec of gRPC servers that serve ADS (grpc.ForceServerCodecV2): it reads a Request and writes a
// Response. All other messages are protobuf's.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*Response); ok {
		return r.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Request); ok {
		return r.decode(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}
