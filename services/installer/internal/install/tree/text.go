package tree

import (
	"bytes"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v2"
)

const (
	// pieceNodes is how large a tree the library gets at once: it holds all events of what it writes, which for the
	// definition of a kind are megabytes.
	pieceNodes = 1000
	// simpleKey bounds keys that the library surely writes on one line, before their value.
	simpleKey = 64
)

// Text writes a tree as YAML, keys in order, the same bytes for the same tree: those that the library writes for the
// whole of it.
func Text(v any) ([]byte, error) {
	w := writer{limit: pieceNodes}
	err := w.write(nil, v)
	return w.out.Bytes(), err
}

// step leads from a mapping or a list to what is in it.
type step struct {
	key string
	// item counts the items of a list from 1; 0 is a key.
	item int
}

// child is what a step leads to.
type child struct {
	step
	value any
}

// writer writes a tree in pieces. Each is marshalled inside of all that it is in, with nothing beside it, so that it
// gets its place in the line; the lines of what an earlier piece has begun are left out.
type writer struct {
	limit int
	out   bytes.Buffer
	// begun is the path of the last piece.
	begun []step
}

// write writes what is at a path: large children one by one, small neighbours together.
func (w *writer) write(path []step, v any) error {
	if count(v, w.limit) <= w.limit {
		return w.piece(path, v)
	}
	children := children(v)
	if children == nil {
		return w.piece(path, v)
	}
	var group []child
	nodes := 0
	flush := func() error {
		if len(group) == 0 {
			return nil
		}
		v := together(group)
		group, nodes = nil, 0
		return w.piece(path, v)
	}
	for _, c := range children {
		n := count(c.value, w.limit)
		if nodes+n > w.limit {
			if err := flush(); err != nil {
				return err
			}
		}
		if n > w.limit {
			if err := w.write(append(slices.Clip(path), c.step), c.value); err != nil {
				return err
			}
			continue
		}
		group = append(group, c)
		nodes += n
	}
	return flush()
}

// count counts the nodes of a tree, to a little more than the limit.
func count(v any, limit int) int {
	n := 1
	switch v := v.(type) {
	case Map:
		for _, item := range v {
			if n += count(item, limit-n); n > limit {
				return n
			}
		}
	case []any:
		for _, item := range v {
			if n += count(item, limit-n); n > limit {
				return n
			}
		}
	}
	return n
}

// children returns what is in a mapping or a list, in the order in which it is written; nil if that cannot be divided.
func children(v any) []child {
	var out []child
	switch v := v.(type) {
	case Map:
		names := Map{}
		for k := range v {
			if len(k) > simpleKey || strings.ContainsAny(k, "\n\r") {
				return nil
			}
			names[k] = nil
		}
		// The library has an order of its own, by the numbers in keys.
		text, err := yaml.Marshal(names)
		if err != nil {
			return nil
		}
		var ordered yaml.MapSlice
		if yaml.Unmarshal(text, &ordered) != nil {
			return nil
		}
		for _, item := range ordered {
			k, _ := item.Key.(string)
			value, ok := v[k]
			if !ok {
				return nil
			}
			out = append(out, child{step{key: k}, value})
		}
	case []any:
		for i, item := range v {
			out = append(out, child{step{item: i + 1}, item})
		}
	}
	return out
}

// together is a mapping or a list of some of its children.
func together(group []child) any {
	if group[0].item == 0 {
		m := Map{}
		for _, c := range group {
			m[c.key] = c.value
		}
		return m
	}
	var list []any
	for _, c := range group {
		list = append(list, c.value)
	}
	return list
}

// piece writes what is at a path.
func (w *writer) piece(path []step, v any) error {
	v = toYAML(v)
	for _, s := range slices.Backward(path) {
		if s.item == 0 {
			v = Map{s.key: v}
		} else {
			v = []any{v}
		}
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	common := 0
	for common < len(path) && common < len(w.begun) && path[common] == w.begun[common] {
		common++
	}
	w.begun = slices.Clone(path)
	// A key that was begun is a line; an item that was begun is a dash before what comes next.
	dashes := 0
	for _, s := range path[:common] {
		if dashes++; s.item == 0 {
			dashes = 0
			text = text[bytes.IndexByte(text, '\n')+1:]
		}
	}
	if at := len(text) - len(bytes.TrimLeft(text, " ")); dashes > 0 {
		copy(text[at:], strings.Repeat("  ", dashes))
	}
	_, err = w.out.Write(text)
	return err
}
