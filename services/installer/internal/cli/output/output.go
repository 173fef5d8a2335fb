// Package output has the flag -o, and prints warnings.
package output

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/cli/complete"
)

// short is istioctl's name of the output that a command has without -o.
const short = "short"

// JSONPath begins a value of -o that is a template of kubectl's JSONPath.
const JSONPath = "jsonpath="

// AsTable is another name of that output.
const AsTable = "table"

// Format is the value of -o; empty means the command's table.
type Format struct {
	Value   string
	allowed []string
}

// New returns a flag that takes these formats, beside istioctl's short.
func New(allowed ...string) *Format {
	return &Format{allowed: append([]string{short}, allowed...)}
}

// String and the next two methods implement pflag.Value.
func (f *Format) String() string { return f.Value }

// Set takes a value.
func (f *Format) Set(s string) error {
	if strings.HasPrefix(s, JSONPath) && slices.ContainsFunc(f.allowed, func(a string) bool { return strings.HasPrefix(a, JSONPath) }) {
		f.Value = s
		return nil
	}
	if !slices.Contains(f.allowed, s) {
		return fmt.Errorf("must be one of %s%s", strings.Join(f.allowed, ", "), nearest.Hint(s, f.allowed))
	}
	if f.Value = s; s == short || s == AsTable {
		f.Value = ""
	}
	return nil
}

// Type is shown in the help.
func (f *Format) Type() string { return strings.Join(f.allowed, "|") }

// WantsManifests reports whether whole manifests are printed.
func (f *Format) WantsManifests() bool {
	return f.Value == "json" || f.Value == "yaml" || strings.HasPrefix(f.Value, JSONPath)
}

// Flag adds -o.
func Flag(cmd *cobra.Command, f *Format) {
	cmd.Flags().VarP(f, "output", "o", "output format")
	complete.Flag(cmd, "output", f.allowed...)
}

// Warn prints warnings.
func Warn(w io.Writer, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintln(w, "warning:", strings.ReplaceAll(text, "\n", " "))
	}
}

// Write writes to a file, or to out if none is named: the value of a flag --output that names a file.
func Write(out io.Writer, file string, text []byte) error {
	if file == "" {
		_, err := out.Write(text)
		return err
	}
	if err := fileio.Output(file, text, 0o644); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
