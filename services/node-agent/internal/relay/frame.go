package relay

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is one gRPC message as bytes. It owns a reference to its buffers: the
// codec gives it on receipt and takes it on sending, so that each frame is
// sent at most once and freed if it is not sent.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec passes frames through untouched. It calls itself "proto", because that
// is what is in them, and leaves messages that are not frames to that codec
// (the health service of the same server).
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
