// Package plan says which resources each class of proxies has, and keeps them built: every resource is a pure function of what its
// translator has read, so it is built again only when one of those answers has changed, and sent again only when its bytes have.
package plan

import (
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/input"
)

// Translator makes the resources of one xDS type. Its methods are pure: the same answers of the Reader give the same result. They are
// called concurrently for different classes.
type Translator interface {
	// TypeURL of the resources.
	TypeURL() string
	// Names lists what a wildcard subscription of the class receives, sorted; nil for types that proxies ask for by name.
	Names(r *input.Reader) ([]string, error)
	// Build makes one resource. It returns nil, nil where the class has no resource of that name; the message must not be changed later.
	Build(r *input.Reader, name string) (proto.Message, error)
}
