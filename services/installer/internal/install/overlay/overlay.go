// Package overlay applies the overlays of a component, k8s.overlays: patches of single fields of rendered objects.
package overlay

import (
	"encoding/json"
	"fmt"
	"strings"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Overlay chooses an object, and patches it.
type Overlay struct {
	APIVersion string  `json:"apiVersion,omitempty"`
	Kind       string  `json:"kind,omitempty"`
	Name       string  `json:"name,omitempty"`
	Patches    []Patch `json:"patches,omitempty"`
}

// Patch sets the field of a path. A value that is null or absent removes it.
type Patch struct {
	Path  string `json:"path,omitempty"`
	Value any    `json:"value,omitempty"`
}

// Read reads overlays from a spec.
func Read(v any) ([]Overlay, error) {
	if v == nil {
		return nil, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var overlays []Overlay
	err = json.Unmarshal(text, &overlays)
	return overlays, err
}

// Apply applies overlays to the objects of one component. What selects nothing is a warning, because charts make some
// objects only under some values.
func Apply(component string, objects []*manifest.Object, overlays []Overlay) (warnings []string, err error) {
	for i, o := range overlays {
		at := fmt.Sprintf("component %s: k8s.overlays[%d] (%s %s)", component, i, o.Kind, o.Name)
		found := false
		for _, obj := range objects {
			if obj.Kind() != o.Kind || obj.Name() != o.Name {
				continue
			}
			found = true
			w, err := patch(at, obj, o.Patches)
			if err != nil {
				return nil, err
			}
			warnings = append(warnings, w...)
		}
		if !found {
			warnings = append(warnings, at+": the component has no such object, so that nothing changes")
		}
	}
	return warnings, nil
}

func patch(at string, obj *manifest.Object, patches []Patch) (warnings []string, err error) {
	obj.Set(tree.CopyMap(obj.Tree))
	for j, p := range patches {
		where := fmt.Sprintf("%s: patches[%d]", at, j)
		if strings.Trim(p.Path, ". ") == "" {
			warnings = append(warnings, where+": it has no path, so that nothing changes")
			continue
		}
		path, err := tree.ParsePath(p.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		why, err := one(obj.Tree, path, value(p.Value))
		if err != nil {
			return nil, fmt.Errorf("%s: path %s: %w", where, p.Path, err)
		}
		if why != "" {
			warnings = append(warnings, fmt.Sprintf("%s: path %s: %s, so that nothing changes", where, p.Path, why))
		}
	}
	return warnings, nil
}

// value of a patch: text that is the YAML of a mapping stands for the mapping.
func value(v any) any {
	s, ok := v.(string)
	if !ok || !strings.Contains(s, ":") {
		return tree.Copy(v)
	}
	parsed, err := tree.Parse([]byte(s))
	if table, isMap := parsed.(tree.Map); err == nil && isMap {
		return table
	}
	return v
}

// one sets or removes the field of a path; why says what was not found.
func one(obj tree.Map, path tree.Path, v any) (why string, err error) {
	missing, found := lookup(obj, path)
	if v == nil && !found {
		return missing + " is not there", nil
	}
	if !found && strings.HasPrefix(missing, "item ") {
		return missing + " is not there", nil
	}
	return "", tree.Set(obj, path, v)
}

// lookup follows a path, and names the first step that leads nowhere. An index behind the end of a list is one, unless
// it is the last step: there it appends.
func lookup(m tree.Map, path tree.Path) (missing string, found bool) {
	var at any = m
	for i, step := range path {
		if step.Selector == nil {
			table, _ := at.(tree.Map)
			next, ok := table[step.Key]
			if !ok {
				// What is behind a selector cannot be made.
				for _, rest := range path[i+1:] {
					if rest.Selector != nil && rest.Selector.ByValue {
						return "item " + path.String(), false
					}
				}
				return "field " + path[:i+1].String(), false
			}
			at = next
			continue
		}
		list, _ := at.([]any)
		index := step.Selector.Index
		if step.Selector.ByValue {
			if index = step.Selector.Find(list); index < 0 {
				return "item " + path[:i+1].String(), false
			}
		}
		if index < 0 || index >= len(list) {
			return "place " + path[:i+1].String(), false
		}
		at = list[index]
	}
	return "", true
}
