package wire

import (
	"slices"
	"unicode/utf8"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/plan"
)

// Request is a request of a client. Names and initial versions are usually exactly what the client's class has, so they
// are only tallied at first, and decoded where the tally differs from the class's.
type Request struct {
	// Delta is set by the receiver before it receives: the variant of the protocol.
	Delta bool

	Node           *core.Node
	TypeURL, Nonce string
	// Failure is set in a NACK.
	Failure *rpcstatus.Status
	// Version is the version_info of a sotw request.
	Version     string
	Unsubscribe []string
	// NameTally is that of the names, InitialTally that of the initial versions.
	NameTally, InitialTally plan.Tally
	// InitialBytes is the number of bytes of the initial versions.
	InitialBytes int
	// Size is the number of bytes of the request.
	Size int

	wildcard bool
	names    []string          // nil until they are decoded
	initial  map[string]string // nil until they are decoded
	// buffers hold the encoded request while names or initial may still be decoded.
	buffers mem.BufferSlice
}

// eagerNames is the number of names up to which they are decoded at once.
const eagerNames = 16

// Names lists what a delta request subscribes to, or all that a sotw request asks for. "*" may be among them. The
// request must not be released yet if it is the first call.
func (r *Request) Names() []string {
	if r.names == nil && r.NameTally.Count() > 0 {
		r.names = make([]string, 0, r.NameTally.Count())
		r.each(resourceNamesSubscribe, func(content []byte) { r.names = append(r.names, string(content)) })
	}
	return r.names
}

// Wildcard reports whether "*" is among the names.
func (r *Request) Wildcard() bool { return r.wildcard }

// Initial returns the versions, by name, that the client of a delta request says to hold (initial_resource_versions).
// The request must not be released yet if it is the first call.
func (r *Request) Initial() map[string]string {
	if r.initial == nil && r.InitialTally.Count() > 0 {
		r.initial = make(map[string]string, r.InitialTally.Count())
		r.each(initialResourceVersions, func(content []byte) {
			if name, version, ok := consumeEntry(content); ok && utf8.Valid(name) && utf8.Valid(version) {
				r.initial[string(name)] = string(version)
			}
		})
	}
	return r.initial
}

// each calls f for the content of each field of a number. decode has read the fields without an error.
func (r *Request) each(number protowire.Number, f func(content []byte)) {
	_ = eachField(r.buffers, func(at protoField) error {
		if at.number == number && at.delimited {
			f(at.content())
		}
		return nil
	})
}

// Release frees the encoded request. Names and initial versions cannot be decoded any more.
func (r *Request) Release() { r.buffers.Free() }

// Field numbers of DeltaDiscoveryRequest.
const (
	resourceNamesSubscribe  = 3
	initialResourceVersions = 5
)

// decode reads a request. The codec calls it.
func (r *Request) decode(data mem.BufferSlice) error {
	r.Size = data.Len()
	if !r.Delta {
		return r.decodeSotw(data)
	}
	var rest []byte
	err := eachField(data, func(f protoField) error {
		switch {
		case f.number == initialResourceVersions && f.delimited:
			if _, version, ok := consumeEntry(f.content()); ok {
				r.InitialBytes += len(f.content())
				r.InitialTally.Add(version)
			}
		case f.number == resourceNamesSubscribe && f.delimited:
			name := f.content()
			if !utf8.Valid(name) {
				return errNotUTF8
			}
			r.NameTally.Add(name)
			r.wildcard = r.wildcard || string(name) == "*"
		default:
			rest = append(rest, f.raw...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(rest, m); err != nil {
		return err
	}
	r.Node, r.TypeURL, r.Nonce, r.Failure = m.GetNode(), m.GetTypeUrl(), m.GetResponseNonce(), m.GetErrorDetail()
	r.Unsubscribe = m.GetResourceNamesUnsubscribe()
	r.buffers = data
	few := r.NameTally.Count() <= eagerNames
	if few {
		r.Names()
	}
	if few && r.InitialTally.Count() == 0 {
		r.buffers = nil
		return nil
	}
	data.Ref()
	return nil
}

func (r *Request) decodeSotw(data mem.BufferSlice) error {
	m := &discovery.DiscoveryRequest{}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	if err := proto.Unmarshal(raw.ReadOnlyData(), m); err != nil {
		return err
	}
	r.Node, r.TypeURL, r.Nonce, r.Failure = m.GetNode(), m.GetTypeUrl(), m.GetResponseNonce(), m.GetErrorDetail()
	r.Version, r.names = m.GetVersionInfo(), m.GetResourceNames()
	for _, name := range r.names {
		r.NameTally.AddString(name)
	}
	r.wildcard = slices.Contains(r.names, "*")
	return nil
}

// consumeEntry reads an entry of a map<string, string>.
func consumeEntry(raw []byte) (key, value []byte, ok bool) {
	for len(raw) > 0 {
		f, err := measureField(raw)
		if err != nil || f.size == 0 || f.size > len(raw) {
			return nil, nil, false
		}
		f.raw, raw = raw[:f.size], raw[f.size:]
		switch {
		case !f.delimited:
		case f.number == 1:
			key = f.content()
		case f.number == 2:
			value = f.content()
		}
	}
	return key, value, true
}
