// Package signedbundle builds what agents receive of the mesh's trust: the bundle as the ca has signed it. Envoy does
// not request it.
package signedbundle

import (
	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Name of the one resource that a class has. Agents ask for all, and look at no name.
const Name = "signedbundle"

// Translator passes the bundle on, to classes that request it.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return contract.SignedBundleType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the resource once the ca has sent a bundle.
func (Translator) Names(r *input.Reader) ([]string, error) {
	if r.SignedBundle() == nil {
		return nil, nil
	}
	return []string{Name}, nil
}

// HostNames is nil: services do not matter.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	signed := r.SignedBundle()
	if name != Name || signed == nil {
		return nil, nil
	}
	return resource{signed}, nil
}

// resource gives the name to a SignedBundle, which has no field for it.
type resource struct{ *cav1.SignedBundle }

// GetName returns the resource's name.
func (resource) GetName() string { return Name }
