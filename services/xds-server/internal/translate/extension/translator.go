// Package extension has the translator of extension configs (ECDS), the configurations of HTTP filters that are
// resources of their own: the slots of package policy. Others are added by EnvoyFilters, see package patch.
package extension

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/policy"
)

// Translator builds TypedExtensionConfigs (ECDS).
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.ExtensionConfigType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names implements plan.Translator.
func (Translator) Names(r *input.Reader) ([]string, error) { return policy.SlotNames(r), nil }

// HostNames implements plan.Translator.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	out, err := policy.Slot(r, name)
	if out == nil || err != nil {
		return nil, err
	}
	return out, nil
}
