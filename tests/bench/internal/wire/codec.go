// Package wire reads and writes delta ADS messages as bytes: enough of them to behave as a proxy does, and no more, so
// that the clients of a benchmark cost little.
package wire

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// Method is the ADS method of the delta protocol, Desc its stream.
const Method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// Desc describes Method.
var Desc = grpc.StreamDesc{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true}

// Message is a received message. Free gives its memory back.
type Message struct {
	Body []byte
	buf  mem.Buffer
}

// Free ends the use of Body.
func (m *Message) Free() {
	if m.buf != nil {
		m.buf.Free()
		m.buf, m.Body = nil, nil
	}
}

// Parts is a message to send: its bytes in order. They are not copied before gRPC frames them.
type Parts [][]byte

// Codec passes bytes through. It receives into *Message and sends Parts.
type Codec struct{}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	parts, ok := v.(Parts)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	out := make(mem.BufferSlice, len(parts))
	for i, p := range parts {
		out[i] = mem.SliceBuffer(p)
	}
	return out, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("cannot receive into a %T", v)
	}
	m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	m.Body = m.buf.ReadOnlyData()
	return nil
}
