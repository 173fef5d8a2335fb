package authzview

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/lists"
)

// ProviderChange is a provider of CUSTOM policies that MeshConfig defines otherwise: it may answer otherwise, or
// another server does.
type ProviderChange struct {
	Provider string `json:"provider"`
	// Changes are the fields that change, "FIELD: OLD -> NEW".
	Changes []string `json:"changes"`
	// Policies, as "NAMESPACE/NAME", ask the provider, before the change or after it.
	Policies []string `json:"policies"`
}

func (c ProviderChange) text() string {
	return fmt.Sprintf("provider %s, which CUSTOM policies ask (%s): %s", c.Provider, few(c.Policies), strings.Join(c.Changes, "; "))
}

// providerChanges compares the providers that policies ask.
func providerChanges(before, after *Mesh) (out []ProviderChange) {
	askedBy := map[string][]string{}
	for _, p := range slices.Concat(before.Policies, after.Policies) {
		if name := p.Spec.GetProvider().GetName(); name != "" {
			askedBy[name] = append(askedBy[name], policyName(p))
		}
	}
	for _, name := range sortedKeys(askedBy) {
		was, is := before.providerFields(name), after.providerFields(name)
		c := ProviderChange{Provider: name, Policies: slices.Compact(slices.Sorted(slices.Values(askedBy[name])))}
		switch {
		case was == nil && is == nil:
		case is == nil:
			c.Changes = []string{"MeshConfig has it no longer: remove the policies, or keep it in extensionProviders"}
		case was == nil && !before.SettingsKnown:
			c.Changes = []string{"MeshConfig defines it; what it was before is not known"}
		case was == nil:
			c.Changes = []string{"MeshConfig defines it, and had none of that name"}
		default:
			fields := maps.Clone(was)
			maps.Copy(fields, is)
			for _, f := range sortedKeys(fields) {
				if was[f] != is[f] {
					c.Changes = append(c.Changes, fmt.Sprintf("%s: %s -> %s", f, orUnset(was[f]), orUnset(is[f])))
				}
			}
		}
		if len(c.Changes) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// providerFields are the fields of a provider's definition, with their values as JSON; nil if there is none.
func (m *Mesh) providerFields(name string) map[string]string {
	p := m.provider(name)
	if p == nil {
		return nil
	}
	out := map[string]string{}
	var value any
	text, err := protojson.Marshal(p)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		return map[string]string{"definition": err.Error()}
	}
	flatten(out, "", value)
	return out
}

// flatten sets the fields of a value of JSON. A list is one value.
func flatten(out map[string]string, field string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			flatten(out, strings.TrimPrefix(field+"."+name, "."), below)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		out[field] = "[" + strings.Join(lists.Map(v, func(item any) string { return fmt.Sprint(item) }), " ") + "]"
		return
	}
	out[field] = fmt.Sprint(value)
}

func orUnset(value string) string {
	if value == "" {
		return "not set"
	}
	return value
}
