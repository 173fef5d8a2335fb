package tree

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	yaml "go.yaml.in/yaml/v2"
)

// maxDepth bounds how deep a document nests.
const maxDepth = 200

// Parse reads one YAML or JSON document. Numbers become float64, as in JSON, so that a document means the same to
// charts in whichever form it came.
func Parse(text []byte) (any, error) {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	return fromYAML(v, 0)
}

// ParseMap reads a document that must be a mapping; an empty document gives an empty one.
func ParseMap(text []byte) (Map, error) {
	return parseMap(text, yaml.Unmarshal)
}

// ParseStrictMap is ParseMap that refuses a key that is there twice.
func ParseStrictMap(text []byte) (Map, error) {
	return parseMap(text, yaml.UnmarshalStrict)
}

func parseMap(text []byte, unmarshal func([]byte, any) error) (Map, error) {
	var read any
	if err := unmarshal(text, &read); err != nil {
		return nil, err
	}
	v, err := fromYAML(read, 0)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return Map{}, nil
	}
	m, ok := v.(Map)
	if !ok {
		return nil, fmt.Errorf("the document is %s; it must be a mapping", Kind(v))
	}
	return m, nil
}

func fromYAML(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("the document nests deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case map[any]any:
		out := make(Map, len(v))
		for k, item := range v {
			next, err := fromYAML(item, depth+1)
			if err != nil {
				return nil, err
			}
			out[keyText(k)] = next
		}
		return out, nil
	case Map:
		out := make(Map, len(v))
		for k, item := range v {
			next, err := fromYAML(item, depth+1)
			if err != nil {
				return nil, err
			}
			out[k] = next
		}
		return out, nil
	case []any:
		for i, item := range v {
			next, err := fromYAML(item, depth+1)
			if err != nil {
				return nil, err
			}
			v[i] = next
		}
		return v, nil
	case int:
		return float64(v), nil
	case int64:
		return float64(v), nil
	case uint64:
		return float64(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is no number that JSON has", v)
		}
		return v, nil
	}
	return v, nil
}

// keyText is how JSON writes a key.
func keyText(k any) string {
	switch k := k.(type) {
	case string:
		return k
	case nil:
		return "null"
	case float64:
		return strconv.FormatFloat(k, 'g', -1, 64)
	}
	return fmt.Sprint(k)
}

// toYAML gives whole numbers their short form.
func toYAML(v any) any {
	switch v := v.(type) {
	case Map:
		out := make(Map, len(v))
		for k, item := range v {
			out[k] = toYAML(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = toYAML(item)
		}
		return out
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
	}
	return v
}
