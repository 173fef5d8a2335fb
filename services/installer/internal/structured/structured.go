// Package structured prints values and protobuf messages as JSON or YAML, for the flag -o of commands.
package structured

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// Print prints a value as JSON or YAML.
func Print(w io.Writer, as string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return PrintText(w, text, as == "yaml")
}

// PrintMessage prints a protobuf message as JSON or YAML, with all of its fields.
func PrintMessage(w io.Writer, as string, m proto.Message) error {
	tree, err := Tree(m)
	if err != nil {
		return err
	}
	return Print(w, as, tree)
}

// Tree converts a protobuf message, with all of its fields, to what encoding/json prints. protojson varies its
// blanks on purpose, and people compare outputs.
func Tree(m proto.Message) (tree any, err error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &tree)
	return tree, err
}

// PrintText prints JSON text, as YAML if asYAML is set.
func PrintText(w io.Writer, text []byte, asYAML bool) error {
	if asYAML {
		y, err := yaml.JSONToYAML(text)
		if err != nil {
			return err
		}
		text = y
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(string(text), "\n"))
	return err
}
