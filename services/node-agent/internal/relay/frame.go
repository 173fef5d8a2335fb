package relay

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is one gRPC message as bytes. It owns a reference to its buffers: codec sets it on receipt and takes it back on
// sending. So a frame is sent at most once, and one that is not sent must be freed.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec passes frames through unchanged. Its name is that of the protobuf codec, because frames hold protobuf, and it
// leaves other messages, such as those of the health service, to that codec.
type codec struct{ proto encoding.CodecV2 }

func newCodec() codec { return codec{proto: encoding.GetCodecV2(encproto.Name)} }

func (c codec) Name() string { return encproto.Name }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.proto.Marshal(v)
	}
	data := f.data
	f.data = nil // gRPC frees what Marshal returns
	return data, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.proto.Unmarshal(data, v)
	}
	if f.data != nil {
		return fmt.Errorf("relay: frame received into one that is in use")
	}
	data.Ref()
	f.data = data
	return nil
}
