package format

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
)

// mistake is what is wrong at a place of a file; the place is a JSON pointer.
type mistake struct {
	at  string
	err error
}

func (m *mistake) Error() string { return m.at + ": " + m.err.Error() }

func (m *mistake) Unwrap() error { return m.err }

// wrong is a mistake at a place.
func wrong(at, format string, args ...any) error { return &mistake{at, fmt.Errorf(format, args...)} }

// inFile says of mistakes in which file and on which line they are.
func inFile(file string, raw []byte, err error) error {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		var all []error
		for _, e := range several.Unwrap() {
			all = append(all, inFile(file, raw, e))
		}
		return errors.Join(all...)
	}
	var m *mistake
	if errors.As(err, &m) {
		return fmt.Errorf("%s:%d: %w", file, lineOf(raw, m.at), err)
	}
	return fmt.Errorf("%s: %w", file, err)
}

// lineOf is the line of a YAML text where a place is, or the nearest place around it that there is.
func lineOf(raw []byte, at string) int {
	var doc yaml3.Node
	if yaml3.Unmarshal(raw, &doc) != nil || len(doc.Content) == 0 {
		return 1
	}
	node := doc.Content[0]
	line := node.Line
	for name := range strings.SplitSeq(strings.Trim(at, "/"), "/") {
		key, value := member(node, name)
		if value == nil {
			break
		}
		line, node = key.Line, value
	}
	return line
}

// member finds what a name means in a mapping, or a number in a sequence, and where that begins; nil if there is
// nothing.
func member(node *yaml3.Node, name string) (key, value *yaml3.Node) {
	switch node.Kind {
	case yaml3.AliasNode:
		return member(node.Alias, name)
	case yaml3.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	case yaml3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				return node.Content[i], node.Content[i+1]
			}
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == "<<" {
				return member(node.Content[i+1], name)
			}
		}
	}
	return nil, nil
}
