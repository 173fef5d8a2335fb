package lastgood

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types with an order of their own: an Envoy drops the virtual hosts of a route configuration that it does not have.
const (
	routeType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// View is configuration to answer Envoy from. It does not change.
type View struct {
	// Sealed is when the configuration was sealed; the zero time if it was never in a file.
	Sealed   time.Time
	contents contents
}

// One returns the only resource of a type that Keep was called for, as an encoded Any, and its version; nil if there is
// none.
func (v *View) One(url string) (name, version string, body []byte) {
	if k := v.contents[url]; k != nil {
		for name, resource := range k.resources {
			return name, string(field(resource, resourceVersion)), field(resource, resourceBody)
		}
	}
	return "", "", nil
}

// Session answers the requests of one stream as an xds-server would whose configuration never changes. A name that the
// configuration does not have gets no answer: whether it exists is not known. It is for one goroutine.
type Session struct {
	view   *View
	delta  bool
	asked  map[string][]string // by type
	routes []string            // route configurations that were sent
	nonce  int
}

// Session begins to answer a stream.
func (v *View) Session(delta bool) *Session {
	return &Session{view: v, delta: delta, asked: map[string][]string{}}
}

// Answer returns the responses to a request, and the error with which Envoy rejects an earlier one, "" if it does not.
func (s *Session) Answer(message []byte) (responses [][]byte, rejected string) {
	req := parse(message, s.delta)
	last, seen := s.asked[req.url]
	if !seen && len(s.asked) == maxTypes {
		return nil, ""
	}
	s.asked[req.url] = req.names
	have := s.view.contents[req.url]
	if have == nil {
		return nil, req.rejected
	}
	if !s.delta {
		if seen && req.nonce != "" && slices.Equal(last, req.names) {
			return nil, req.rejected // an ACK or NACK alone
		}
		return [][]byte{s.sotw(req.url, have, req.names)}, req.rejected
	}
	var names []string
	switch {
	case req.url == virtualHostType && len(req.names) == 0:
		if !seen {
			responses = s.virtualHosts(s.routes)
		}
		return responses, req.rejected
	case !seen && len(req.names) == 0 || slices.Contains(req.names, "*"):
		names = slices.Sorted(maps.Keys(have.resources))
	default:
		names = have.find(req.names, req.url == virtualHostType)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		version, held := req.held[name]
		return held && version == string(field(have.resources[name], resourceVersion))
	})
	var gone []string
	for name := range req.held {
		if have.resources[name] == nil {
			gone = append(gone, name)
		}
	}
	// Envoy waits for the first response of a type, even if there is no resource.
	if len(names) > 0 || len(gone) > 0 || !seen && len(req.names) == 0 && len(req.held) == 0 {
		responses = append(responses, s.response(req.url, have, names, gone))
	}
	if req.url == routeType && len(req.names) > 0 {
		s.routes = append(s.routes, req.names...)
		if _, asked := s.asked[virtualHostType]; asked {
			responses = append(responses, s.virtualHosts(req.names)...)
		}
	}
	return responses, req.rejected
}

// virtualHosts are the responses with the virtual hosts of route configurations, one for each, because Envoy rebuilds a
// route configuration with every response. One without virtual hosts is released by a removal.
func (s *Session) virtualHosts(routes []string) (responses [][]byte) {
	have := s.view.contents[virtualHostType]
	if have == nil {
		return nil
	}
	for _, route := range routes {
		var names, gone []string
		for name := range have.resources {
			if i := strings.LastIndexByte(name, '/'); i == len(route) && strings.HasPrefix(name, route) {
				names = append(names, name)
			}
		}
		if slices.Sort(names); len(names) == 0 {
			gone = []string{route + "/none"}
		}
		responses = append(responses, s.response(virtualHostType, have, names, gone))
	}
	return responses
}

func (s *Session) next() string {
	s.nonce++
	return "last-good-" + strconv.Itoa(s.nonce)
}

// response is a DeltaDiscoveryResponse.
func (s *Session) response(url string, have *kept, names, removed []string) []byte {
	out := response("", url, s.next(), names, have.resources)
	for _, name := range removed {
		out = appendBytes(out, listRemoved, []byte(name))
	}
	return out
}

// sotw is a DiscoveryResponse with all resources, or with those of the names.
func (s *Session) sotw(url string, have *kept, names []string) []byte {
	if len(names) == 0 || slices.Contains(names, "*") {
		names = slices.Sorted(maps.Keys(have.resources))
	} else {
		names = have.find(names, false)
	}
	bodies := map[string][]byte{}
	for _, name := range names {
		bodies[name] = field(have.resources[name], resourceBody)
	}
	return response(have.version, url, s.next(), names, bodies)
}

// find returns the names of those resources that there are, in their order. With aliases a name may also be an alias.
func (k *kept) find(names []string, aliases bool) (found []string) {
	for _, name := range names {
		if k.resources[name] != nil {
			found = append(found, name)
			continue
		}
		if !aliases {
			continue
		}
		for other, resource := range k.resources {
			if slices.Contains(texts(resource, resourceAliases), name) {
				found = append(found, other)
				break
			}
		}
	}
	return found
}
