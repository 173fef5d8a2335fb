package coverage

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/scenarios/internal/format"
)

// set marks the rows of the fields that a scenario's objects set, in steps that must succeed.
func set(rows map[string]*Row, s *format.Scenario, steps []format.Step) {
	for _, step := range steps {
		for _, text := range []string{step.Apply, step.ApplyNoWait} {
			for doc := range strings.SplitSeq("\n"+text, "\n---") {
				var o struct {
					Kind string `json:"kind"`
					Spec any    `json:"spec"`
				}
				if yaml.Unmarshal([]byte(doc), &o) == nil {
					below(rows, o.Kind, o.Spec, func(row *Row) { row.SetBy = withName(row.SetBy, s.Name) })
				}
			}
		}
		if step.Eventually != nil {
			set(rows, s, step.Eventually.Steps)
		}
	}
}

// translated marks the rows of the fields that a golden's input sets: its MeshConfig and its objects.
func translated(rows map[string]*Row, name, text string) error {
	var in struct {
		Mesh    any `json:"mesh"`
		Objects []struct {
			Kind string `json:"kind"`
			Spec any    `json:"spec"`
		} `json:"objects"`
	}
	if err := yaml.Unmarshal([]byte(text), &in); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	mark := func(row *Row) { row.Goldens = withName(row.Goldens, name) }
	below(rows, "MeshConfig", in.Mesh, mark)
	for _, o := range in.Objects {
		below(rows, o.Kind, o.Spec, mark)
	}
	return nil
}

func withName(list []string, name string) []string {
	if slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

// below marks what a value below a path sets. The key of a map has no row: what is below it counts as below the map.
func below(rows map[string]*Row, path string, value any, mark func(*Row)) {
	switch v := value.(type) {
	case []any:
		for _, each := range v {
			below(rows, path, each, mark)
		}
	case map[string]any:
		if name, ok := v["key"].(string); ok && path == whenPath {
			name, _, _ = strings.Cut(name, "[")
			if row := rows[path+"."+name]; row != nil {
				mark(row)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			at := path + "." + key
			if row := rows[at]; row == nil {
				at = path
			} else {
				mark(row)
			}
			below(rows, at, v[key], mark)
		}
	}
}
