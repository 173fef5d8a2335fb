package serve

import (
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/plan"
)

// holding is what a client says it holds when it connects: names and versions, mostly exactly what its class has. They are counted as they
// come, and only taken apart where the count says that something is different.
type holding struct {
	tally plan.Tally
	// raw are the entries as they came, size their bytes.
	raw  [][]byte
	size int
	// versions by name, once taken apart.
	versions map[string]string
}

// held makes a holding of what was decoded already.
func held(versions map[string]string) *holding {
	h := &holding{versions: versions}
	for name, version := range versions {
		h.tally.AddString(version)
		h.size += len(name) + len(version)
	}
	return h
}

// none reports whether the client holds nothing.
func (h *holding) none() bool { return h == nil || h.tally.Count() == 0 }

// all takes the holding apart.
func (h *holding) all() map[string]string {
	if h == nil {
		return nil
	}
	if h.versions == nil && len(h.raw) > 0 {
		h.versions = make(map[string]string, len(h.raw))
		for _, entry := range h.raw {
			if name, version, ok := consumeEntry(entry); ok && utf8.Valid(name) && utf8.Valid(version) {
				h.versions[string(name)] = string(version)
			}
		}
		h.raw = nil
	}
	return h.versions
}

// consumeEntry reads an entry of a map of strings.
func consumeEntry(raw []byte) (key, value []byte, ok bool) {
	for len(raw) > 0 {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil, nil, false
		}
		raw = raw[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, raw); n < 0 {
				return nil, nil, false
			}
			raw = raw[n:]
			continue
		}
		text, n := protowire.ConsumeBytes(raw)
		if n < 0 {
			return nil, nil, false
		}
		switch raw = raw[n:]; field {
		case 1:
			key = text
		case 2:
			value = text
		}
	}
	return key, value, true
}

// initialResourceVersions is the number of that field of DeltaDiscoveryRequest.
const initialResourceVersions = 5

// deltaRequest is a delta request with what the client holds apart. Where the codec is not ours it is an ordinary message.
type deltaRequest struct {
	*discovery.DeltaDiscoveryRequest
	held *holding
}

// decode reads a request.
func (r *deltaRequest) decode(data mem.BufferSlice) error {
	raw := data.Materialize()
	h := &holding{}
	rest := make([]byte, 0, min(len(raw), 4<<10))
	for left := raw; len(left) > 0; {
		field, kind, n := protowire.ConsumeTag(left)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, left[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if field != initialResourceVersions || kind != protowire.BytesType {
			rest = append(rest, left[:n+size]...)
			left = left[n+size:]
			continue
		}
		entry, _ := protowire.ConsumeBytes(left[n:])
		left = left[n+size:]
		_, version, ok := consumeEntry(entry)
		if !ok {
			continue
		}
		h.raw = append(h.raw, entry)
		h.size += len(entry)
		h.tally.Add(version)
	}
	r.held = h
	return proto.Unmarshal(rest, r.DeltaDiscoveryRequest)
}
