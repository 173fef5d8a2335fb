package profile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Mapping is components.yaml.
type Mapping struct {
	// Components in the order in which they are installed.
	Components []Component `json:"components"`
	// Namespace is where components without a namespace of their own go, unless the values say another.
	Namespace string `json:"namespace"`
	// Values are fields of the spec that are values, too.
	Values []SpecValue `json:"values"`
	// Settings are the values of Istio's schema that this package has a use for, and those that it has none for. A
	// package without them has a use for all.
	Settings []Setting `json:"settings,omitempty"`
	// NoLabels are labels of Istio's Pods that none of this package's has, key=value, with what to select instead.
	NoLabels map[string]string `json:"noLabels,omitempty"`
	// Schema is values.schema.json of the package: its values beside those that Istio has; nil without the file.
	Schema *Schema `json:"-"`
}

// Schema is a part of a JSON Schema: what types, fields and items values have.
type Schema struct {
	Type        any                `json:"type,omitempty"`
	Description string             `json:"description,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	Items       *Schema            `json:"items,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	// Additional is false, or the schema of fields that Properties does not have.
	Additional json.RawMessage `json:"additionalProperties,omitempty"`
}

// At returns the schema of the value that keys lead to; nil if there is none.
func (s *Schema) At(keys ...string) *Schema {
	for _, k := range keys {
		if s == nil {
			return nil
		}
		s = s.Properties[k]
	}
	return s
}

// Types are the types that a value may have.
func (s *Schema) Types() []string {
	switch t := s.Type.(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, item := range t {
			all = append(all, fmt.Sprint(item))
		}
		return all
	}
	return nil
}

// Other returns the schema of fields that Properties does not have, and whether there may be any.
func (s *Schema) Other() (*Schema, bool) {
	if string(s.Additional) == "false" {
		return nil, false
	}
	var other Schema
	if len(s.Additional) == 0 || json.Unmarshal(s.Additional, &other) != nil {
		return nil, true
	}
	return &other, true
}

// Setting is one of Istio's values, or a mapping with all that is below it. The longest path that a value is at or
// below counts.
type Setting struct {
	// Path below the spec, "values.pilot.traceSampling". A last step may end in *.
	Path string `json:"path"`
	// Does says what the setting does. Without it the setting has no counterpart, and is a warning.
	Does string `json:"does,omitempty"`
	// Instead says what a setting without counterpart is replaced by.
	Instead string `json:"instead,omitempty"`
	// Example is a value with which the objects are others.
	Example any `json:"example,omitempty"`
}

// Setting returns what the package says about a path of the spec; nil if it says nothing.
func (m *Mapping) Setting(path string) *Setting {
	var best *Setting
	for i := range m.Settings {
		s := &m.Settings[i]
		prefix, open := strings.CutSuffix(s.Path, "*")
		if (path == s.Path || strings.HasPrefix(path, s.Path+".") || open && strings.HasPrefix(path, prefix)) &&
			(best == nil || len(s.Path) > len(best.Path)) {
			best = s
		}
	}
	return best
}

// SpecValue is a field of the spec, or of a component, with the path of the value that says the same.
type SpecValue struct {
	Spec  string `json:"spec"`
	Value string `json:"value"`
	// SpecWins says which counts if both are set.
	SpecWins bool `json:"specWins,omitempty"`
	// Text values are written as strings.
	Text bool `json:"text,omitempty"`
}

// Component is what the engine has to know of a component that is not in its chart.
type Component struct {
	// Name is the field of spec.components.
	Name string `json:"name"`
	// List is set for a component of which there may be many, each with a name, as gateways.
	List bool `json:"list,omitempty"`
	// Chart is the directory of its chart, below the package.
	Chart string `json:"chart"`
	// Root is where its values are, "gateways.istio-ingressgateway".
	Root string `json:"root"`
	// Flatten puts what is below Root at the top of what the chart gets.
	Flatten bool `json:"flatten,omitempty"`
	// Drop are values of other components that the chart does not get.
	Drop []string `json:"drop,omitempty"`
	// Switches are values that say whether the component is enabled.
	Switches []string `json:"switches,omitempty"`
	// Values are the component's own fields that are values below Root.
	Values []SpecValue `json:"values,omitempty"`
	// Fields that this component does not have, of those that components have.
	Without []string `json:"without,omitempty"`
	// About says what the component is, for people.
	About string `json:"about,omitempty"`
	// Only are the values that the chart gets beside those of Root; empty: all.
	Only []string `json:"only,omitempty"`
	// Under names a component that speaks of this one, too: its fields, and its values in UnderValues, lie under this
	// one's. It has no chart. A component is enabled if the one that it is under is, unless it says otherwise.
	Under string `json:"under,omitempty"`
	// With names another component that this one is a part of, too: it is also enabled if that is.
	With string `json:"with,omitempty"`
	// UnderWithout are fields of that component, by their paths, that do not speak of this one.
	UnderWithout []string `json:"underWithout,omitempty"`
	UnderValues  []string `json:"underValues,omitempty"`
	// Overlays are kinds with names, as other packages have them, with the names that the objects have here.
	Overlays map[string]string `json:"overlays,omitempty"`
	// Shared components are not a revision's own: other revisions need them, too.
	Shared bool `json:"shared,omitempty"`
	// Alone is set for a component beside which there is no other revision of the control plane.
	Alone bool `json:"alone,omitempty"`
	// Roots is set for a component that keeps the mesh's roots in a ConfigMap of every namespace, which
	// values.global.trustBundleName names.
	Roots bool `json:"roots,omitempty"`
	// Absent says why a component that Istio has is not in this package. To enable it is a warning.
	Absent string `json:"absent,omitempty"`
	// Workload is what the Kubernetes settings speak of.
	Workload Workload `json:"workload"`
	// Alias names the component that a former one is part of now. It is accepted with a warning, and has no effect.
	Alias string `json:"alias,omitempty"`
}

// Workload names the objects that Kubernetes settings change. A name may hold ${name} and ${revision}, "-canary" or
// empty.
type Workload struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Container string `json:"container"`
	Service   string `json:"service,omitempty"`
}

// Component returns the component of a name; nil if there is none.
func (m *Mapping) Component(name string) *Component {
	i := slices.IndexFunc(m.Components, func(c Component) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Components[i]
}

// speaksOfOthers tells of a component that others are under.
func (m *Mapping) speaksOfOthers(name string) bool {
	return slices.ContainsFunc(m.Components, func(c Component) bool { return c.Under == name })
}

// RootPath returns the keys of Root.
func (c *Component) RootPath() []string {
	if c.Root == "" {
		return nil
	}
	return strings.Split(c.Root, ".")
}

func parseMapping(text []byte) (*Mapping, error) {
	var m Mapping
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		return nil, err
	}
	if len(m.Components) == 0 {
		return nil, fmt.Errorf("it names no component")
	}
	seen := map[string]bool{}
	for i, c := range m.Components {
		switch {
		case c.Name == "" || c.Chart == "" && c.Alias == "" && c.Absent == "" && !m.speaksOfOthers(c.Name):
			return nil, fmt.Errorf("components[%d] has no name or no chart", i)
		case seen[c.Name]:
			return nil, fmt.Errorf("component %s is there twice", c.Name)
		case strings.Contains(c.Chart, ".."):
			return nil, fmt.Errorf("component %s has a chart outside of the package: %s", c.Name, c.Chart)
		}
		if over := m.Component(c.Under); c.Under != "" && (over == nil || over.Chart != "" || over.List || c.List) {
			return nil, fmt.Errorf("component %s is under %s, which is no component, has a chart, or is a list", c.Name, c.Under)
		}
		if with := m.Component(c.With); c.With != "" && (with == nil || c.Under == "") {
			return nil, fmt.Errorf("component %s is with %s, which is no component, or it is under none", c.Name, c.With)
		}
		seen[c.Name] = true
	}
	return &m, nil
}
