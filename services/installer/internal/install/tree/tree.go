// Package tree works on YAML documents as trees: map[string]any, []any and scalars. Every stage of the install engine
// takes trees and gives trees; none changes a tree that it was given, unless it says so.
package tree

import (
	"fmt"
	"maps"
	"slices"
)

// Map is a YAML mapping.
type Map = map[string]any

// Copy returns a deep copy.
func Copy(v any) any {
	switch v := v.(type) {
	case Map:
		return CopyMap(v)
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = Copy(item)
		}
		return out
	}
	return v
}

// CopyMap returns a deep copy of a mapping; nil stays nil.
func CopyMap(m Map) Map {
	if m == nil {
		return nil
	}
	out := make(Map, len(m))
	for k, v := range m {
		out[k] = Copy(v)
	}
	return out
}

// Merge returns base with over laid on it: mappings merge key by key, and everything else, lists included, is replaced.
// A null in over stays as a null, because Helm's charts tell it from an absent key.
func Merge(base, over Map) Map {
	out := CopyMap(base)
	if out == nil {
		out = Map{}
	}
	mergeInto(out, over)
	return out
}

func mergeInto(base, over Map) {
	for k, v := range over {
		next, isMap := v.(Map)
		if old, ok := base[k].(Map); ok && isMap {
			mergeInto(old, next)
			continue
		}
		base[k] = Copy(v)
	}
}

// Get follows keys of mappings; ok is false if one of them is absent.
func Get(m Map, keys ...string) (v any, ok bool) {
	v = m
	for _, k := range keys {
		table, isMap := v.(Map)
		if !isMap {
			return nil, false
		}
		if v, ok = table[k]; !ok {
			return nil, false
		}
	}
	return v, true
}

// GetMap returns the mapping below keys; nil if there is none.
func GetMap(m Map, keys ...string) Map {
	v, _ := Get(m, keys...)
	table, _ := v.(Map)
	return table
}

// GetString returns the string below keys; empty if there is none.
func GetString(m Map, keys ...string) string {
	v, _ := Get(m, keys...)
	s, _ := v.(string)
	return s
}

// Put sets the value below keys in m itself, and makes the mappings between. Something else than a mapping on the way
// is replaced.
func Put(m Map, v any, keys ...string) {
	for _, k := range keys[:len(keys)-1] {
		next, ok := m[k].(Map)
		if !ok {
			next = Map{}
			m[k] = next
		}
		m = next
	}
	m[keys[len(keys)-1]] = v
}

// Delete removes the value below keys from m itself.
func Delete(m Map, keys ...string) {
	if parent, ok := Get(m, keys[:len(keys)-1]...); ok {
		if table, isMap := parent.(Map); isMap {
			delete(table, keys[len(keys)-1])
		}
	}
}

// Keys returns the keys of a mapping in order.
func Keys(m Map) []string { return slices.Sorted(maps.Keys(m)) }

// Kind names the kind of a value for errors.
func Kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case Map:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int, int64, uint64, float64:
		return "a number"
	}
	return fmt.Sprintf("%T", v)
}
