package lastgood

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of envoy.service.discovery.v3.
const (
	// Fields of Resource; resourceBody is an Any.
	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3
	resourceAliases = 4
	// Fields of DeltaDiscoveryResponse; the file has one for each type.
	listVersion   = 1
	listResources = 2
	listType      = 4
	listNonce     = 5
	listRemoved   = 6
)

// resourceType is the type URL of a Resource, in which a state-of-the-world response may wrap its resources.
const resourceType = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// Limits of what is read. A file has a handful of types.
const maxTypes = 64

// kept are the resources of a type by name, each as an encoded envoy.service.discovery.v3.Resource, and the version of
// the last state-of-the-world response.
type kept struct {
	version string
	// own says that the agent itself asked for the type, so a new Envoy does not change what is kept of it.
	own       bool
	resources map[string][]byte
}

// contents are the resources that a proxy holds, by type URL.
type contents map[string]*kept

// of returns the resources of a type, which it adds if they are missing.
func (c contents) of(url string) *kept {
	if c[url] == nil {
		c[url] = &kept{resources: map[string][]byte{}}
	}
	return c[url]
}

// size is the number of bytes of all resources and names.
func (c contents) size() int {
	n := 0
	for _, k := range c {
		for name, resource := range k.resources {
			n += len(name) + len(resource)
		}
	}
	return n
}

// encode writes the contents as DeltaDiscoveryResponses, each behind its length.
func (c contents) encode() []byte {
	out := make([]byte, 0, c.size()+1024)
	for _, url := range slices.Sorted(maps.Keys(c)) {
		list := response(c[url].version, url, "", slices.Sorted(maps.Keys(c[url].resources)), c[url].resources)
		out = protowire.AppendBytes(out, list)
	}
	return out
}

// response is a DeltaDiscoveryResponse with the named resources.
func response(version, url, nonce string, names []string, resources map[string][]byte) []byte {
	var out []byte
	if version != "" {
		out = appendBytes(out, listVersion, []byte(version))
	}
	for _, name := range names {
		out = appendBytes(out, listResources, resources[name])
	}
	out = appendBytes(out, listType, []byte(url))
	if nonce != "" {
		out = appendBytes(out, listNonce, []byte(nonce))
	}
	return out
}

// decode reads what encode wrote.
func decode(text []byte) (contents, error) {
	c := contents{}
	for len(text) > 0 {
		list, n := protowire.ConsumeBytes(text)
		if n < 0 || len(c) == maxTypes {
			return nil, fmt.Errorf("%w: not a list of types", ErrCorrupt)
		}
		text = text[n:]
		url := string(field(list, listType))
		if url == "" {
			return nil, fmt.Errorf("%w: resources without a type", ErrCorrupt)
		}
		k := c.of(url)
		k.version = string(field(list, listVersion))
		for resource := range repeated(list, listResources) {
			name := string(field(resource, resourceName))
			if name == "" {
				return nil, fmt.Errorf("%w: %w", ErrCorrupt, errNoName)
			}
			k.resources[name] = slices.Clone(resource)
		}
	}
	return c, nil
}

// fields are the fields of an encoded message that have a length: texts, bytes and messages. It skips the others, and
// ends at the first invalid part.
func fields(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			if n < 0 {
				return
			}
			message = message[n:]
			if kind != protowire.BytesType {
				if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
					return
				}
				message = message[n:]
				continue
			}
			value, n := protowire.ConsumeBytes(message)
			if n < 0 || !yield(number, value) {
				return
			}
			message = message[n:]
		}
	}
}

// repeated are the values of one field.
func repeated(message []byte, of protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for number, value := range fields(message) {
			if number == of && !yield(value) {
				return
			}
		}
	}
}

// field is the last value of a field, nil if there is none.
func field(message []byte, of protowire.Number) (last []byte) {
	for value := range repeated(message, of) {
		last = value
	}
	return last
}

// texts are the values of a repeated field of texts.
func texts(message []byte, of protowire.Number) (all []string) {
	for value := range repeated(message, of) {
		all = append(all, string(value))
	}
	return all
}

var errNoName = errors.New("a resource without a name")

// wrap makes a Resource of one in a state-of-the-world response, which is an Any. Its name is field 1 of every type of
// resource that Envoy asks for.
func wrap(body []byte, version string) (name string, resource []byte, err error) {
	const anyType, anyValue, messageName = 1, 2, 1
	value := field(body, anyValue)
	if string(field(body, anyType)) == resourceType {
		if name = string(field(value, resourceName)); name == "" {
			return "", nil, errNoName
		}
		return name, slices.Clone(value), nil
	}
	if name = string(field(value, messageName)); name == "" {
		return "", nil, errNoName
	}
	return name, named(name, version, body), nil
}

// named makes a Resource.
func named(name, version string, body []byte) []byte {
	resource := appendBytes(nil, resourceVersion, []byte(version))
	resource = appendBytes(resource, resourceBody, body)
	return appendBytes(resource, resourceName, []byte(name))
}

func appendBytes(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}
