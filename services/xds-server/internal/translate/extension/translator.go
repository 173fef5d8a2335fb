// Package extension serves configurations of HTTP filters that are resources of their own (ECDS). Fairlead's own filters need none: all of
// them are what EnvoyFilters add, see package patch.
package extension

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Translator makes TypedExtensionConfigs (ECDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.ExtensionConfigType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names is nil.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames is nil.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build makes none.
func (Translator) Build(*input.Reader, string) (proto.Message, error) { return nil, nil }
