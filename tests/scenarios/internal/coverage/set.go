package coverage

import (
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
					setBelow(rows, s.Name, o.Kind, o.Spec)
				}
			}
		}
		if step.Eventually != nil {
			set(rows, s, step.Eventually.Steps)
		}
	}
}

// setBelow marks what is below a path. The key of a map has no row: what is below it counts as below the map.
func setBelow(rows map[string]*Row, scenario, path string, value any) {
	switch v := value.(type) {
	case []any:
		for _, each := range v {
			setBelow(rows, scenario, path, each)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := path + "." + key
			if row := rows[below]; row == nil {
				below = path
			} else if !slices.Contains(row.SetBy, scenario) {
				row.SetBy = append(row.SetBy, scenario)
			}
			setBelow(rows, scenario, below, v[key])
		}
	}
}
