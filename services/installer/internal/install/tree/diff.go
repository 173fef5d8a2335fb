package tree

import (
	"fmt"
	"reflect"
	"strings"
)

// Select returns the value at a path.
func Select(m Map, path Path) (any, error) {
	var at any = m
	for i, step := range path {
		if step.Selector == nil {
			table, ok := at.(Map)
			next, found := table[step.Key]
			if !ok || !found {
				return nil, fmt.Errorf("there is no field %s", path[:i+1])
			}
			at = next
			continue
		}
		list, _ := at.([]any)
		index := step.Selector.Index
		if step.Selector.ByValue {
			index = step.Selector.Find(list)
		}
		if index < 0 || index >= len(list) {
			return nil, fmt.Errorf("%s: %w with %s", path[:i], ErrNoItem, step.Selector)
		}
		at = list[index]
	}
	return at, nil
}

// Change is a field that differs between two trees.
type Change struct {
	// Path of the field, as `--set` takes it. "PATH (order)" is a list with the same items in another order, and then
	// First and Second are their names.
	Path string `json:"path"`
	// First and Second are its values; an absent one is nil, and so is null.
	First  any `json:"first,omitempty"`
	Second any `json:"second,omitempty"`
	// Added and Removed are set if one tree has no such field.
	Added   bool `json:"added,omitempty"`
	Removed bool `json:"removed,omitempty"`
}

// Diff lists the fields that differ: "- path: value" of a, "+ path: value" of b, in the order of paths.
func Diff(a, b Map) []string {
	var lines []string
	for _, c := range Changes(a, b) {
		lines = append(lines, DiffLines(c)...)
	}
	return lines
}

// Changes lists the fields that differ, in the order of paths. Items of lists are compared by their names if each has
// one of its own, else by their places.
func Changes(a, b Map) []Change {
	var all []Change
	changes(nil, a, b, func(c Change) { all = append(all, c) })
	return all
}

func changes(path Path, a, b any, found func(Change)) {
	am, ok1 := a.(Map)
	bm, ok2 := b.(Map)
	if ok1 && ok2 {
		for _, k := range Keys(Merge(am, bm)) {
			av, inA := am[k]
			bv, inB := bm[k]
			pair(append(path[:len(path):len(path)], Step{Key: k}), av, bv, inA, inB, found)
		}
		return
	}
	al, ok1 := a.([]any)
	bl, ok2 := b.([]any)
	if ok1 && ok2 {
		items(path, al, bl, found)
		return
	}
	if !reflect.DeepEqual(a, b) {
		found(Change{Path: path.String(), First: a, Second: b})
	}
}

// pair compares two values of one path, of which one may be absent.
func pair(at Path, a, b any, inA, inB bool, found func(Change)) {
	switch {
	case !inA:
		found(Change{Path: at.String(), Second: b, Added: true})
	case !inB:
		found(Change{Path: at.String(), First: a, Removed: true})
	default:
		changes(at, a, b, found)
	}
}

// items compares two lists.
func items(path Path, a, b []any, found func(Change)) {
	aNamed, ok1 := byName(a)
	bNamed, ok2 := byName(b)
	if ok1 && ok2 {
		for _, name := range Keys(Merge(aNamed, bNamed)) {
			av, inA := aNamed[name]
			bv, inB := bNamed[name]
			pair(append(path[:len(path):len(path)], Step{Selector: &Selector{ByValue: true, Key: "name", Value: name}}), av, bv, inA, inB, found)
		}
		if first, second := namesIn(a, bNamed), namesIn(b, aNamed); !reflect.DeepEqual(first, second) {
			found(Change{Path: path.String() + " (order)", First: first, Second: second})
		}
		return
	}
	for i := range max(len(a), len(b)) {
		var av, bv any
		if i < len(a) {
			av = a[i]
		}
		if i < len(b) {
			bv = b[i]
		}
		pair(append(path[:len(path):len(path)], Step{Selector: &Selector{Index: i}}), av, bv, i < len(a), i < len(b), found)
	}
}

// namesIn lists the names of a list's items that the other list has, too, in their order.
func namesIn(list []any, other Map) []any {
	var names []any
	for _, item := range list {
		name := item.(Map)["name"].(string)
		if _, ok := other[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// byName returns the items of a list by their names; ok is false unless every item has one of its own.
func byName(list []any) (named Map, ok bool) {
	named = Map{}
	for _, item := range list {
		m, _ := item.(Map)
		name, _ := m["name"].(string)
		if _, twice := named[name]; name == "" || twice {
			return nil, false
		}
		named[name] = item
	}
	return named, true
}

// DiffLines writes a change as Diff does. Of a text of several lines in both trees, the lines from the first to the
// last that differ are written.
func DiffLines(c Change) []string {
	first, ok1 := c.First.(string)
	second, ok2 := c.Second.(string)
	switch {
	case ok1 && ok2 && strings.Contains(first, "\n") && strings.Contains(second, "\n"):
		return textLines(c.Path, strings.Split(first, "\n"), strings.Split(second, "\n"))
	case c.Added:
		return []string{line("+", c.Path, c.Second)}
	case c.Removed:
		return []string{line("-", c.Path, c.First)}
	}
	return []string{line("-", c.Path, c.First), line("+", c.Path, c.Second)}
}

// textLines writes what differs between two texts, each line with the number of the first one.
func textLines(path string, a, b []string) []string {
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	write := func(sign string, text []string) string {
		at := fmt.Sprintf("%s %s, from line %d:", sign, path, start+1)
		for _, l := range text {
			at += "\n" + sign + "   " + l
		}
		return at
	}
	var lines []string
	if left := a[start : len(a)-end]; len(left) > 0 {
		lines = append(lines, write("-", left))
	}
	if left := b[start : len(b)-end]; len(left) > 0 {
		lines = append(lines, write("+", left))
	}
	return lines
}

// line writes a value behind its path; a mapping, a list and text of several lines go below it, each line with the
// sign.
func line(sign, path string, v any) string {
	text, err := Text(v)
	if err != nil {
		text = []byte(fmt.Sprint(v))
	}
	s := strings.TrimRight(string(text), "\n")
	m, isMap := v.(Map)
	list, isList := v.([]any)
	if isMap && len(m) == 0 || isList && len(list) == 0 || !isMap && !isList && !strings.Contains(s, "\n") {
		return fmt.Sprintf("%s %s: %s", sign, path, s)
	}
	return fmt.Sprintf("%s %s:\n%s   %s", sign, path, sign, strings.ReplaceAll(s, "\n", "\n"+sign+"   "))
}
