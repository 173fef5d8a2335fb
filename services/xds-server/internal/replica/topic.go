package replica

import "strconv"

// Subject says what a Topic is about.
type Subject uint8

// Subjects of look-ups. The comment says what A and B of the Topic hold.
const (
	// SubjectService: A = hostname.
	SubjectService Subject = iota + 1
	// SubjectServices, the list of services exported to a namespace: A = that namespace or "*", B = the services' namespace or "" for all.
	SubjectServices
	// SubjectEndpoints: A = hostname, B = port.
	SubjectEndpoints
	// SubjectGatewayRoutes, the VirtualServices bound to a gateway: A = namespace exported to or "*", B = gateway.
	SubjectGatewayRoutes
	// SubjectHostRoutes, the VirtualServices of a gateway that name a host: A = gateway, B = host, or "*" for any wildcard host.
	SubjectHostRoutes
	// SubjectDestinationRule: A = host, or "*" for any wildcard host.
	SubjectDestinationRule
	// SubjectSidecars: A = namespace.
	SubjectSidecars
	// SubjectPeerAuthentications: A = namespace.
	SubjectPeerAuthentications
	// SubjectGateways, the Gateways whose selector holds a label: A = "key=value", or "" for those without a selector.
	SubjectGateways
	// SubjectWorkload: A = namespace, B = name.
	SubjectWorkload
	// SubjectAddress, the workloads of an address: A = address.
	SubjectAddress
	// SubjectMesh, the mesh-wide settings.
	SubjectMesh
	// SubjectSelectedLabels, the label keys that selectors test: A = namespace of the workloads, or "*".
	SubjectSelectedLabels
	// SubjectDerived and all above it are free for answers that a caller derives from several look-ups.
	SubjectDerived Subject = 128
)

// Topic names one answer of a State. Equal topics mean the same question.
type Topic struct {
	Subject Subject
	A, B    string
}

// Topics is a set of topics.
type Topics map[Topic]struct{}

// Add puts a topic into the set.
func (t Topics) Add(topic Topic) { t[topic] = struct{}{} }

// Has reports whether the set holds the topic.
func (t Topics) Has(topic Topic) bool {
	_, ok := t[topic]
	return ok
}

func endpointsTopic(hostname string, port uint32) Topic {
	return Topic{SubjectEndpoints, hostname, strconv.FormatUint(uint64(port), 10)}
}

// Meets reports whether two sets have a topic in common.
func (t Topics) Meets(other Topics) bool {
	few, many := t, other
	if len(many) < len(few) {
		few, many = many, few
	}
	for topic := range few {
		if many.Has(topic) {
			return true
		}
	}
	return false
}
