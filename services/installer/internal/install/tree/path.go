package tree

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Path is a parsed path to a field, as `--set` and overlays write it: keys between dots, `\.` for a dot in a key, and
// selectors of list items in brackets: [2], [key:value], and [:value] for a list of scalars.
type Path []Step

// Step is a key of a mapping, or a selector of an item of a list.
type Step struct {
	// Key of a mapping; empty for a selector.
	Key string
	// Selector is set for what was in brackets.
	Selector *Selector
}

// Selector chooses an item of a list: by Index, or by the Value of its field Key. An empty Key compares the item
// itself.
type Selector struct {
	Index      int
	ByValue    bool
	Key, Value string
	// Bare is set for text without a colon that is no number, [value]: it is compared with items that are scalars.
	Bare bool
}

// maxSteps bounds the depth of a path, because every step may make a level of the tree.
const maxSteps = 100

// String gives the path back as it is written.
func (p Path) String() string {
	var b strings.Builder
	for i, s := range p {
		if s.Selector != nil {
			b.WriteString(s.Selector.String())
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(escape(s.Key))
	}
	return b.String()
}

func (s *Selector) String() string {
	switch {
	case s.Bare:
		return "[" + bracketed.Replace(s.Value) + "]"
	case s.ByValue:
		return "[" + bracketed.Replace(s.Key+":"+s.Value) + "]"
	}
	return "[" + strconv.Itoa(s.Index) + "]"
}

var escaper = strings.NewReplacer(`\`, `\\`, `.`, `\.`, `[`, `\[`, `]`, `\]`)

var bracketed = strings.NewReplacer(`\`, `\\`, `]`, `\]`)

func escape(key string) string { return escaper.Replace(key) }

// ParsePath parses a path. Empty keys, as between two dots, do not count, which is istioctl's habit.
func ParsePath(text string) (Path, error) {
	var path Path
	var key strings.Builder
	started := false
	flush := func() {
		if started && key.Len() > 0 {
			path = append(path, Step{Key: key.String()})
		}
		key.Reset()
		started = false
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\\':
			if i+1 < len(text) && strings.IndexByte(`\.[]:`, text[i+1]) >= 0 {
				i++
			}
			key.WriteByte(text[i])
			started = true
		case '.':
			flush()
		case '[':
			flush()
			end, inside := closing(text[i+1:])
			if end < 0 {
				return nil, fmt.Errorf("path %q: a bracket is open at the end; close it with ]", text)
			}
			selector, err := parseSelector(inside)
			if err != nil {
				return nil, fmt.Errorf("path %q: %w", text, err)
			}
			path = append(path, Step{Selector: selector})
			i += end + 1
		default:
			key.WriteByte(c)
			started = true
		}
	}
	flush()
	if len(path) == 0 {
		return nil, fmt.Errorf("path %q names no field; write for example values.global.hub", text)
	}
	if path[0].Selector != nil {
		return nil, fmt.Errorf("path %q begins with a selector; a field's name comes first", text)
	}
	if len(path) > maxSteps {
		return nil, fmt.Errorf("a path has %d steps; at most %d are allowed", len(path), maxSteps)
	}
	return path, nil
}

// closing finds the bracket that ends a selector, and returns its place and the text before it without escapes.
func closing(text string) (end int, inside string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == ']' || text[i+1] == '\\'):
			i++
			b.WriteByte(text[i])
		case text[i] == ']':
			return i, b.String()
		default:
			b.WriteByte(text[i])
		}
	}
	return -1, ""
}

func parseSelector(inside string) (*Selector, error) {
	if key, value, ok := strings.Cut(inside, ":"); ok {
		return &Selector{ByValue: true, Key: key, Value: value}, nil
	}
	index, err := strconv.Atoi(inside)
	if err != nil && inside != "" {
		return &Selector{ByValue: true, Bare: true, Value: inside}, nil
	}
	if err != nil {
		return nil, errors.New("[] selects nothing; write an index, [2], or a field and its value, [name:x]")
	}
	return &Selector{Index: index}, nil
}

// ErrNoItem is of a selector that selects nothing.
var ErrNoItem = errors.New("no such item")

// Find returns the index of the item that a [key:value] selector selects; -1 if there is none.
func (s *Selector) Find(list []any) int {
	for i, item := range list {
		if s.Key == "" {
			if item != nil && fmt.Sprint(item) == s.Value {
				return i
			}
			continue
		}
		table, _ := item.(Map)
		if v, ok := table[s.Key]; ok && fmt.Sprint(v) == s.Value {
			return i
		}
	}
	return -1
}

// Set sets the field of a path in m itself, and makes what is missing between. An index behind the end, or below 0,
// appends one item. A [key:value] selector must find its item. A nil value removes the field.
func Set(m Map, path Path, value any) error {
	_, err := set(m, path, 0, value)
	return err
}

// set returns what takes the place of at.
func set(at any, path Path, i int, value any) (any, error) {
	if i == len(path) {
		return value, nil
	}
	step := path[i]
	if step.Selector != nil {
		return setItem(at, path, i, value)
	}
	table, ok := at.(Map)
	switch {
	case at == nil:
		table = Map{}
	case !ok:
		return nil, fmt.Errorf("%s is %s, which has no field %q", path[:i], Kind(at), step.Key)
	}
	if i == len(path)-1 && value == nil {
		delete(table, step.Key)
		return table, nil
	}
	next, err := set(table[step.Key], path, i+1, value)
	if err != nil {
		return nil, err
	}
	table[step.Key] = next
	return table, nil
}

func setItem(at any, path Path, i int, value any) (any, error) {
	list, ok := at.([]any)
	if at != nil && !ok {
		return nil, fmt.Errorf("%s is %s, and %s selects an item of a list", path[:i], Kind(at), path[i].Selector)
	}
	selector := path[i].Selector
	index := selector.Index
	if selector.ByValue {
		if index = selector.Find(list); index < 0 {
			return nil, fmt.Errorf("%s: %w with %s", path[:i], ErrNoItem, selector)
		}
	}
	if index < 0 || index >= len(list) {
		if value == nil {
			return nil, fmt.Errorf("%s: %w at %s", path[:i], ErrNoItem, selector)
		}
		index = len(list)
		list = append(list, nil)
	}
	if value == nil && i == len(path)-1 {
		return append(list[:index:index], list[index+1:]...), nil
	}
	next, err := set(list[index], path, i+1, value)
	if err != nil {
		return nil, err
	}
	list[index] = next
	return list, nil
}
