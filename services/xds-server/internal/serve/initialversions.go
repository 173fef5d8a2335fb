package serve

import (
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/plan"
)

// initialVersions are the names and versions that a delta client states in its first request of a type
// (initial_resource_versions). Usually they are exactly what its class has, so they are only tallied at first, and
// decoded where the tally differs from the class's.
type initialVersions struct {
	tally plan.Tally
	// buffers hold the encoded request; size is the number of bytes of its entries.
	buffers mem.BufferSlice
	size    int
	// versions by name; nil until they are decoded.
	versions map[string]string
}

// initialVersionsOf is for versions that the codec has decoded already.
func initialVersionsOf(versions map[string]string) *initialVersions {
	v := &initialVersions{versions: versions}
	for name, version := range versions {
		v.tally.AddString(version)
		v.size += len(name) + len(version)
	}
	return v
}

// empty reports whether the client holds nothing.
func (v *initialVersions) empty() bool { return v == nil || v.tally.Count() == 0 }

// decoded returns the versions by name.
func (v *initialVersions) decoded() map[string]string {
	if v == nil {
		return nil
	}
	if v.versions == nil && len(v.buffers) > 0 {
		v.versions = make(map[string]string, v.tally.Count())
		_ = eachField(v.buffers, func(f protoField) error { // deltaRequest.decode has read it without an error
			if f.number != initialResourceVersions || !f.delimited {
				return nil
			}
			if name, version, ok := consumeEntry(f.content()); ok && utf8.Valid(name) && utf8.Valid(version) {
				v.versions[string(name)] = string(version)
			}
			return nil
		})
	}
	return v.versions
}

// longNames is a long list of names that a delta request subscribes to, tallied and decoded like initialVersions.
type longNames struct {
	tally    plan.Tally
	buffers  mem.BufferSlice
	wildcard bool
	names    []string
}

// total is the tally of the names; a nil list is empty.
func (l *longNames) total() plan.Tally {
	if l == nil {
		return plan.Tally{}
	}
	return l.tally
}

func (l *longNames) count() int { t := l.total(); return t.Count() }

// decoded returns the names.
func (l *longNames) decoded() []string {
	if l == nil {
		return nil
	}
	if l.names == nil && len(l.buffers) > 0 {
		l.names = make([]string, 0, l.tally.Count())
		_ = eachField(l.buffers, func(f protoField) error { // as in initialVersions.decoded
			if f.number == resourceNamesSubscribe && f.delimited {
				l.names = append(l.names, string(f.content()))
			}
			return nil
		})
	}
	return l.names
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

// Field numbers of DeltaDiscoveryRequest.
const (
	resourceNamesSubscribe  = 3
	initialResourceVersions = 5
)

// deltaRequest is a delta request whose initial resource versions, and whose subscribed names if they are many, are
// still encoded. To another codec than Codec it is an ordinary message.
type deltaRequest struct {
	*discovery.DeltaDiscoveryRequest
	initial       *initialVersions
	subscribeList *longNames
	// buffers hold the request for initial and subscribeList.
	buffers mem.BufferSlice
	// size is the size of the encoded request; 0 with another codec.
	size int
}

// decode reads a request. The codec calls it.
func (r *deltaRequest) decode(data mem.BufferSlice) error {
	v, l := &initialVersions{}, &longNames{}
	r.size = data.Len()
	var rest []byte
	err := eachField(data, func(f protoField) error {
		switch {
		case f.number == initialResourceVersions && f.delimited:
			if _, version, ok := consumeEntry(f.content()); ok {
				v.size += len(f.content())
				v.tally.Add(version)
			}
		case f.number == resourceNamesSubscribe && f.delimited:
			name := f.content()
			if !utf8.Valid(name) {
				return errNotUTF8
			}
			l.tally.Add(name)
			l.wildcard = l.wildcard || string(name) == "*"
		default:
			rest = append(rest, f.raw...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(rest, r.DeltaDiscoveryRequest); err != nil {
		return err
	}
	l.buffers, r.initial = data, v
	if l.count() > manyNames {
		r.subscribeList = l
	} else if l.count() > 0 {
		r.ResourceNamesSubscribe = l.decoded()
	}
	if r.subscribeList != nil || v.tally.Count() > 0 {
		data.Ref()
		v.buffers, r.buffers = data, data
	}
	return nil
}
