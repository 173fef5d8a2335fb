package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// format is the value of -o.
type format struct {
	value   string
	allowed []string
}

func newFormat(allowed ...string) *format { return &format{allowed: allowed} }

// String, Set and Type implement pflag.Value.
func (f *format) String() string { return f.value }

// Set takes a value.
func (f *format) Set(s string) error {
	if !slices.Contains(f.allowed, s) {
		return fmt.Errorf("must be one of %s", strings.Join(f.allowed, ", "))
	}
	f.value = s
	return nil
}

// Type names the values.
func (f *format) Type() string { return strings.Join(f.allowed, "|") }

func printJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(b))
	return err
}

// printJSONOr prints JSON text as JSON or as YAML.
func printJSONOr(w io.Writer, text []byte, asYAML bool) error {
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
