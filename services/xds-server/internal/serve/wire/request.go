package wire

import (
	"strings"
	"unicode/utf8"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Request is a request of a client. Names and initial versions are usually exactly what the client's class has, so they
// are only tallied at first, and decoded where the tally differs from the class's.
type Request struct {
	// Delta is set by the receiver before it receives: the variant of the protocol.
	Delta bool

	// Refusal is why nothing else of the request is to be used: it would take too much memory. It has a gRPC status.
	Refusal error

	TypeURL, Nonce string
	// Failure is set in a NACK. It has no details.
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

	node     []byte // encoded, without what nobody reads
	wildcard bool
	names    []string          // nil until they are decoded
	initial  map[string]string // nil until they are decoded
	// buffers hold the encoded request while names or initial may still be decoded.
	buffers mem.BufferSlice
}

// eagerNames is the number of names up to which they are decoded at once.
const eagerNames = 16

// Node decodes what class.ParseNode reads of the node. It is empty if the request has none.
func (r *Request) Node() (*core.Node, error) {
	n := &core.Node{}
	return n, proto.Unmarshal(r.node, n)
}

// Names lists what a delta request subscribes to, or all that a sotw request asks for. "*" may be among them. The
// request must not be released yet if it is the first call.
func (r *Request) Names() []string {
	if r.names == nil && r.NameTally.Count() > 0 {
		r.names = make([]string, 0, r.NameTally.Count())
		r.each(r.fields().names, func(content []byte) { r.names = append(r.names, string(content)) })
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
		r.each(r.fields().initial, func(content []byte) {
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

// fieldNumbers are those of the fields that are read of a request; 0 if the variant has no such field.
type fieldNumbers struct {
	version, node, names, unsubscribe, initial, typeURL, nonce, failure protowire.Number
}

// fields returns the field numbers of DeltaDiscoveryRequest or DiscoveryRequest.
func (r *Request) fields() fieldNumbers {
	if r.Delta {
		return fieldNumbers{node: 1, typeURL: 2, names: 3, unsubscribe: 4, initial: 5, nonce: 6, failure: 7}
	}
	return fieldNumbers{version: 1, node: 2, names: 3, typeURL: 4, nonce: 5, failure: 6}
}

// Bounds on a request. An element of two bytes takes up to a hundred when it is decoded, so that elements are counted
// before.
const (
	// maxNames bounds the names of a request, with those that it unsubscribes from and those of its initial versions:
	// a stream may subscribe to half as many (serve.DefaultMaxSubscribedBytes).
	maxNames = 1 << 19
	// maxFailureBytes is how much is read of the message of a NACK; Envoy names in it what it blames.
	maxFailureBytes = 64 << 10
)

var errTooManyNames = status.Errorf(codes.ResourceExhausted, "more than %d resource names in one request", maxNames)

// decode reads the fields that somebody needs. The codec calls it.
func (r *Request) decode(data mem.BufferSlice) error {
	r.Size = data.Len()
	number, nodeBytes, names := r.fields(), 0, 0
	err := eachField(data, func(f protoField) (err error) {
		if !f.delimited {
			return nil
		}
		content := f.content()
		switch f.number {
		case number.node:
			if nodeBytes += len(content); nodeBytes > class.MaxNodeBytes {
				return status.Errorf(codes.InvalidArgument, "%v: more than %d bytes, which is all that is read", class.ErrMalformed, class.MaxNodeBytes)
			}
			return r.keepNode(content)
		case number.initial:
			names++
			if _, version, ok := consumeEntry(content); ok {
				r.InitialBytes += len(content)
				r.InitialTally.Add(version)
			}
		case number.names:
			names++
			r.NameTally.Add(content)
			r.wildcard = r.wildcard || string(content) == "*"
			if !utf8.Valid(content) {
				return errNotUTF8
			}
		case number.unsubscribe:
			names++
			var name string
			name, err = text(content)
			r.Unsubscribe = append(r.Unsubscribe, name)
		case number.typeURL:
			r.TypeURL, err = text(content)
		case number.nonce:
			r.Nonce, err = text(content)
		case number.version:
			r.Version, err = text(content)
		case number.failure:
			return r.readFailure(content)
		}
		if names > maxNames {
			return errTooManyNames
		}
		return err
	})
	if err != nil {
		if _, refused := status.FromError(err); refused {
			r.Refusal, err = err, nil
		}
		return err
	}
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

// text copies a string of a message.
func text(content []byte) (string, error) {
	if !utf8.Valid(content) {
		return "", errNotUTF8
	}
	return string(content), nil
}

// keepNode copies the fields of a node that class.ParseNode reads: id, metadata, version, and of the extensions the
// first and those that class.IsFilter names, each once. All extensions and listening addresses would take up to seventy
// times as much when they are decoded.
func (r *Request) keepNode(content []byte) error {
	kept := map[string]bool{}
	return eachFieldIn(content, func(f protoField) error {
		switch {
		case f.number == 1, f.number == 3, f.number == 7, f.number == 8:
			r.node = append(r.node, f.raw...)
		case f.number == 9 && f.delimited:
			name, _, _ := consumeEntry(f.content()) // its first field is the name
			if first := len(kept) == 0; (first || class.IsFilter(string(name))) && !kept[string(name)] {
				kept[string(name)] = true
				r.node = append(r.node, f.raw...)
			}
		}
		return nil
	})
}

// readFailure reads code and message of an error_detail, and not its details.
func (r *Request) readFailure(content []byte) error {
	if r.Failure == nil {
		r.Failure = &rpcstatus.Status{}
	}
	return eachFieldIn(content, func(f protoField) error {
		switch {
		case f.number == 1 && !f.delimited:
			code, _ := protowire.ConsumeVarint(f.content())
			r.Failure.Code = int32(code) //nolint:gosec // as protobuf does
		case f.number == 2 && f.delimited:
			message := f.content()
			r.Failure.Message = strings.ToValidUTF8(string(message[:min(len(message), maxFailureBytes)]), "")
		}
		return nil
	})
}

// consumeEntry reads an entry of a map<string, string>.
func consumeEntry(raw []byte) (key, value []byte, ok bool) {
	err := eachFieldIn(raw, func(f protoField) error {
		switch {
		case !f.delimited:
		case f.number == 1:
			key = f.content()
		case f.number == 2:
			value = f.content()
		}
		return nil
	})
	return key, value, err == nil
}
