package lastgood

import "fmt"

// request is what matters of a discovery request of Envoy. Its texts are those of the message.
type request struct {
	url, nonce string
	// rejected is the error of a NACK, "" for an ACK or another request.
	rejected string
	// version is version_info of a state-of-the-world request.
	version string
	// names are resource_names, or resource_names_subscribe.
	names []string
	// held are the versions in initial_resource_versions, by name.
	held map[string]string
}

// parse reads a request of a delta stream or of a state-of-the-world one. Parts that are not valid are left out: the
// xds-server judges the message, and here it is only watched.
func parse(message []byte, delta bool) request {
	const errorMessage, mapKey, mapValue = 2, 1, 2
	r := request{held: map[string]string{}}
	reject := func(detail []byte) { r.rejected = fmt.Sprintf("rejected: %s", field(detail, errorMessage)) }
	for number, value := range fields(message) {
		switch {
		case delta && number == 2, !delta && number == 4:
			r.url = string(value)
		case number == 3:
			r.names = append(r.names, string(value))
		case delta && number == 5:
			r.held[string(field(value, mapKey))] = string(field(value, mapValue))
		case delta && number == 6, !delta && number == 5:
			r.nonce = string(value)
		case delta && number == 7, !delta && number == 6:
			reject(value)
		case !delta && number == 1:
			r.version = string(value)
		}
	}
	return r
}

// holds reports whether the request says that Envoy holds resources of the type.
func (r request) holds() bool { return len(r.held) > 0 || r.version != "" }

// Holds reports whether a request of Envoy says that it holds resources.
func Holds(message []byte, delta bool) bool { return parse(message, delta).holds() }
