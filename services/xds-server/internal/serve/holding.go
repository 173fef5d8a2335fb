package serve

import (
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/plan"
)

// holding is what a client says it holds when it connects: names and versions, mostly exactly what its class has. They are counted as they
// come, and only taken apart where the count says that something is different.
type holding struct {
	tally plan.Tally
	// raw is the request as it came, size the bytes of its entries.
	raw  mem.BufferSlice
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
		h.versions = make(map[string]string, h.tally.Count())
		_ = eachField(h.raw, func(f field) error { // decode has read it without an error
			if f.number != initialResourceVersions || !f.delimited {
				return nil
			}
			if name, version, ok := consumeEntry(f.content()); ok && utf8.Valid(name) && utf8.Valid(version) {
				h.versions[string(name)] = string(version)
			}
			return nil
		})
	}
	return h.versions
}

// asking is a long list of names that a client subscribes to, counted and taken apart as a holding is.
type asking struct {
	tally    plan.Tally
	raw      mem.BufferSlice
	wildcard bool
	names    []string
}

// counted is the tally of the names.
func (a *asking) counted() plan.Tally {
	if a == nil {
		return plan.Tally{}
	}
	return a.tally
}

// count is the number of names.
func (a *asking) count() int { t := a.counted(); return t.Count() }

// all takes the list apart.
func (a *asking) all() []string {
	if a == nil {
		return nil
	}
	if a.names == nil && len(a.raw) > 0 {
		a.names = make([]string, 0, a.tally.Count())
		_ = eachField(a.raw, func(f field) error { // as in holding.all
			if f.number == resourceNamesSubscribe && f.delimited {
				a.names = append(a.names, string(f.content()))
			}
			return nil
		})
	}
	return a.names
}

// consumeEntry reads an entry of a map of strings.
func consumeEntry(raw []byte) (key, value []byte, ok bool) {
	for len(raw) > 0 {
		f, err := measure(raw)
		if err != nil || f.size == 0 || f.size > len(raw) {
			return nil, nil, false
		}
		f.whole, raw = raw[:f.size], raw[f.size:]
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

// Numbers of fields of DeltaDiscoveryRequest.
const (
	resourceNamesSubscribe  = 3
	initialResourceVersions = 5
)

// deltaRequest is a delta request with what the client holds apart, and the names it subscribes to if they are many. Where the codec is not
// ours it is an ordinary message.
type deltaRequest struct {
	*discovery.DeltaDiscoveryRequest
	held  *holding
	asked *asking
	// data is what held and asked have yet to be read from.
	data mem.BufferSlice
	// size is that of the request, where the codec is ours.
	size int
}

// decode reads a request.
func (r *deltaRequest) decode(data mem.BufferSlice) error {
	h, a := &holding{}, &asking{}
	r.size = data.Len()
	var rest []byte
	err := eachField(data, func(f field) error {
		switch {
		case f.number == initialResourceVersions && f.delimited:
			if _, version, ok := consumeEntry(f.content()); ok {
				h.size += len(f.content())
				h.tally.Add(version)
			}
		case f.number == resourceNamesSubscribe && f.delimited:
			name := f.content()
			if !utf8.Valid(name) {
				return errNotUTF8
			}
			a.tally.Add(name)
			a.wildcard = a.wildcard || string(name) == "*"
		default:
			rest = append(rest, f.whole...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(rest, r.DeltaDiscoveryRequest); err != nil {
		return err
	}
	a.raw, r.held = data, h
	if a.count() > shortSet {
		r.asked = a
	} else if a.count() > 0 {
		r.ResourceNamesSubscribe = a.all()
	}
	if r.asked != nil || h.tally.Count() > 0 {
		data.Ref()
		h.raw, r.data = data, data
	}
	return nil
}
