// Package extension has the translator of extension configs (ECDS), the configurations of HTTP filters that are
// resources of their own. Fairlead's own filters use none: all are added by EnvoyFilters, see package patch.
package extension

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Translator builds no TypedExtensionConfigs itself (ECDS); patch.WithEnvoyFilters adds those of EnvoyFilters.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.ExtensionConfigType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names implements plan.Translator.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames implements plan.Translator.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build implements plan.Translator.
func (Translator) Build(*input.Reader, string) (proto.Message, error) { return nil, nil }
