package wire

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Fields of DeltaDiscoveryResponse and of the Resource in it.
const (
	responseResources = 2
	responseType      = 4
	responseNonce     = 5
	responseRemoved   = 6

	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3
)

// Content is what a response says, without its nonce. Equal contents of several streams are one object; it is not
// changed once made.
type Content struct {
	Type      string
	Resources []Held
	Removed   []string
	// Endpoints are the names by which the EDS clusters among the resources ask for endpoints, Routes the route
	// configurations that the listeners refer to, Virtual the route configurations whose virtual hosts come by VHDS,
	// Extensions the filters of the listeners whose configurations come by ECDS.
	Endpoints, Routes, Virtual, Extensions []string
	// EndpointSet has the Endpoints.
	EndpointSet map[string]struct{}
	// Hosts are the services that the names of resources and of removed ones speak of.
	Hosts []string
	// Notes are what the Reader's Note says of each of the resources.
	Notes []any
	// Body is the message without its nonce, kept only if the Reader records.
	Body []byte
}

// Response is one received response.
type Response struct {
	*Content
	Nonce []byte
	// Size of the message.
	Size int
}

// Reader decodes responses; each distinct content and each distinct resource is decoded once. It is safe for concurrent
// use.
type Reader struct {
	// Note, if not nil, looks at each resource: of a type, with the name and the encoded body, which it does not keep.
	// It is set before the first Read.
	Note func(typeURL, name string, body []byte) any

	seed maphash.Seed

	mu        sync.Mutex
	record    bool
	contents  map[uint64]*Content
	resources map[uint64]*parsed
}

// parsed is what matters of one resource.
type parsed struct {
	held                                   Held
	endpoints, routes, virtual, extensions []string
	note                                   any
}

// remembered bounds the contents and the resources that a Reader knows; then it begins anew.
const remembered = 100_000

// NewReader makes an empty one.
func NewReader() *Reader {
	return &Reader{seed: maphash.MakeSeed(), contents: map[uint64]*Content{}, resources: map[uint64]*parsed{}}
}

// Record says whether the bodies of contents are kept from now on.
func (r *Reader) Record(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = on
	clear(r.contents)
}

// Read decodes a message. The Response holds nothing of the slice.
func (r *Reader) Read(message []byte) (Response, error) {
	begin, end, nonce, err := findNonce(message)
	if err != nil {
		return Response{}, err
	}
	var h maphash.Hash
	h.SetSeed(r.seed)
	_, _ = h.Write(message[:begin]) // hashes do not fail
	_, _ = h.Write(message[end:])   // hashes do not fail
	key := h.Sum64()
	out := Response{Nonce: slices.Clone(nonce), Size: len(message)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.Content = r.contents[key]; out.Content != nil {
		return out, nil
	}
	if out.Content, err = r.content(message); err != nil {
		return Response{}, err
	}
	if r.record {
		out.Body = slices.Concat(message[:begin], message[end:])
	}
	if len(r.contents) >= remembered {
		clear(r.contents)
	}
	r.contents[key] = out.Content
	return out, nil
}

// findNonce gives where the nonce's field begins and ends, and its value.
func findNonce(message []byte) (begin, end int, nonce []byte, err error) {
	begin, end = len(message), len(message)
	err = scan(message, func(num protowire.Number, value []byte, from, to int) error {
		if num == responseNonce {
			begin, end, nonce = from, to, value
		}
		return nil
	})
	return begin, end, nonce, err
}

var errMalformed = errors.New("malformed message")

// scan calls f with each length-delimited field and where it begins and ends; other fields are passed over.
func scan(message []byte, f func(num protowire.Number, value []byte, from, to int) error) error {
	for at := 0; at < len(message); {
		num, typ, n := protowire.ConsumeTag(message[at:])
		if n < 0 {
			return errMalformed
		}
		size := protowire.ConsumeFieldValue(num, typ, message[at+n:])
		if size < 0 {
			return errMalformed
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[at+n:])
			if err := f(num, value, at, at+n+size); err != nil {
				return err
			}
		}
		at += n + size
	}
	return nil
}

func (r *Reader) content(message []byte) (*Content, error) {
	c := &Content{}
	var resources [][]byte
	err := scan(message, func(num protowire.Number, value []byte, _, _ int) error {
		switch num {
		case responseType:
			c.Type = string(value)
		case responseRemoved:
			c.Removed = append(c.Removed, string(value))
		case responseResources:
			resources = append(resources, value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, raw := range resources {
		key := maphash.Bytes(r.seed, raw)
		p := r.resources[key]
		if p == nil {
			if p, err = r.parse(c.Type, raw); err != nil {
				return nil, err
			}
			if len(r.resources) >= remembered {
				clear(r.resources)
			}
			r.resources[key] = p
		}
		c.Resources = append(c.Resources, p.held)
		if r.Note != nil {
			c.Notes = append(c.Notes, p.note)
		}
		c.Endpoints = append(c.Endpoints, p.endpoints...)
		c.Virtual = append(c.Virtual, p.virtual...)
		c.Routes = appendNew(c.Routes, p.routes)
		c.Extensions = appendNew(c.Extensions, p.extensions)
	}
	c.EndpointSet = make(map[string]struct{}, len(c.Endpoints))
	for _, name := range c.Endpoints {
		c.EndpointSet[name] = struct{}{}
	}
	for _, h := range c.Resources {
		c.Hosts = append(c.Hosts, hostOf(h.Name))
	}
	for _, name := range c.Removed {
		c.Hosts = append(c.Hosts, hostOf(name))
	}
	return c, nil
}

// appendNew appends those that are not there.
func appendNew(list, more []string) []string {
	for _, name := range more {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// hostOf finds the host in "outbound|80|subset|host" and in "80/host:80".
func hostOf(name string) string {
	name = name[strings.LastIndexAny(name, "|/")+1:]
	host, _, _ := strings.Cut(name, ":")
	return host
}

// parse decodes one Resource.
func (r *Reader) parse(typeURL string, raw []byte) (*parsed, error) {
	p := &parsed{}
	var packed []byte
	if err := scan(raw, func(num protowire.Number, value []byte, _, _ int) error {
		switch num {
		case resourceVersion:
			p.held.Version = string(value)
		case resourceName:
			p.held.Name = string(value)
		case resourceBody:
			packed = field(value, 2)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if packed == nil {
		return p, nil
	}
	if r.Note != nil {
		p.note = r.Note(typeURL, p.held.Name, packed)
	}
	var err error
	switch typeURL {
	case Cluster:
		m := &cluster.Cluster{}
		if err = proto.Unmarshal(packed, m); err == nil && m.GetType() == cluster.Cluster_EDS {
			name := m.GetEdsClusterConfig().GetServiceName()
			if name == "" {
				name = m.GetName()
			}
			p.endpoints = []string{name}
		}
	case Listener:
		m := &listener.Listener{}
		if err = proto.Unmarshal(packed, m); err == nil {
			p.routes, p.extensions, err = namedBy(m)
		}
	case Route:
		m := &route.RouteConfiguration{}
		if err = proto.Unmarshal(packed, m); err == nil && m.GetVhds() != nil {
			p.virtual = []string{p.held.Name}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", typeURL, p.held.Name, err)
	}
	return p, nil
}

// namedBy lists the route configurations that a listener refers to, and the HTTP filters whose configurations are
// fetched.
func namedBy(l *listener.Listener) (routes, extensions []string, err error) {
	chains := l.GetFilterChains()
	if l.GetDefaultFilterChain() != nil {
		chains = append(slices.Clone(chains), l.GetDefaultFilterChain())
	}
	for _, chain := range chains {
		for _, f := range chain.GetFilters() {
			m := &hcm.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(m) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
				return nil, nil, err
			}
			if name := m.GetRds().GetRouteConfigName(); name != "" {
				routes = append(routes, name)
			}
			for _, filter := range m.GetHttpFilters() {
				if filter.GetConfigDiscovery() != nil {
					extensions = append(extensions, filter.GetName())
				}
			}
		}
	}
	return routes, extensions, nil
}

// Nonce encodes a response's nonce field, to follow a Body.
func Nonce(nonce string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, responseNonce, protowire.BytesType), nonce)
}
