// Package bootstrap has the translator of the patches that EnvoyFilters apply to a proxy's bootstrap. Agents that are
// configured to request it merge it into their own bootstrap before they start Envoy; see package patch.
package bootstrap

import (
	"google.golang.org/protobuf/proto"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Name of the one resource that a class has.
const Name = "bootstrap"

// TypeURL of the resource.
const TypeURL = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"

// Translator builds an empty bootstrap, which patch.WithEnvoyFilters patches.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return TypeURL }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the bootstrap, also without any patch: an agent waits for it.
func (Translator) Names(*input.Reader) ([]string, error) { return []string{Name}, nil }

// HostNames is nil: services do not matter.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build implements plan.Translator.
func (Translator) Build(_ *input.Reader, name string) (proto.Message, error) {
	if name != Name {
		return nil, nil
	}
	return Resource{&bootstrapv3.Bootstrap{}}, nil
}

// Resource gives the name to a bootstrap, which has no field for it.
type Resource struct{ *bootstrapv3.Bootstrap }

// GetName returns the resource's name.
func (Resource) GetName() string { return Name }
