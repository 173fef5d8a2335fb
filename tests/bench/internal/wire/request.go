package wire

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

// Types of Envoy's resources.
const (
	Cluster     = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoint    = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listener    = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Route       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	VirtualHost = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	Extension   = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
)

// Fields of DeltaDiscoveryRequest.
const (
	requestNode      = 1
	requestType      = 2
	requestSubscribe = 3
	requestLeave     = 4
	requestInitial   = 5
	requestNonce     = 6
)

// Request is a DeltaDiscoveryRequest.
type Request struct {
	// Node is an encoded core.Node, for the first request of a stream.
	Node []byte
	Type string
	// Subscribe are names; none at all on the first request of a type is the legacy wildcard.
	Subscribe []string
	// Unsubscribe are names that are not wanted any more.
	Unsubscribe []string
	// Held are the versions retained from an earlier stream.
	Held []Held
	// Nonce of the response that is acknowledged.
	Nonce []byte
}

// Held is a resource that a proxy has.
type Held struct{ Name, Version string }

// Encode gives the request's bytes.
func (r *Request) Encode() []byte {
	var b []byte
	if r.Node != nil {
		b = protowire.AppendTag(b, requestNode, protowire.BytesType)
		b = protowire.AppendBytes(b, r.Node)
	}
	b = protowire.AppendTag(b, requestType, protowire.BytesType)
	b = protowire.AppendString(b, r.Type)
	for _, name := range r.Subscribe {
		b = protowire.AppendTag(b, requestSubscribe, protowire.BytesType)
		b = protowire.AppendString(b, name)
	}
	for _, name := range r.Unsubscribe {
		b = protowire.AppendTag(b, requestLeave, protowire.BytesType)
		b = protowire.AppendString(b, name)
	}
	var entry []byte
	for _, h := range r.Held {
		entry = protowire.AppendTag(entry[:0], 1, protowire.BytesType)
		entry = protowire.AppendString(entry, h.Name)
		entry = protowire.AppendTag(entry, 2, protowire.BytesType)
		entry = protowire.AppendString(entry, h.Version)
		b = protowire.AppendTag(b, requestInitial, protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
	}
	if r.Nonce != nil {
		b = protowire.AppendTag(b, requestNonce, protowire.BytesType)
		b = protowire.AppendBytes(b, r.Nonce)
	}
	return b
}

// NodeID finds node.id in an encoded request; "" if there is none.
func NodeID(request []byte) string {
	return string(field(field(request, requestNode), 1))
}

// AckOf finds the nonce that an encoded request acknowledges; nil if it acknowledges none.
func AckOf(request []byte) []byte { return field(request, requestNonce) }

// field finds the first length-delimited field of a number.
func field(b []byte, number protowire.Number) []byte {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return nil
		}
		if num == number && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return bytes.Clone(v)
		}
		b = b[n:]
	}
	return nil
}
