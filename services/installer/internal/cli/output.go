package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/nearest"
)

// short is istioctl's name of the output that a command has without -o.
const short = "short"

// jsonPath begins a value of -o that is a template of kubectl's JSONPath.
const jsonPath = "jsonpath="

// asTable is another name of that output.
const asTable = "table"

// format is the value of -o; empty means the command's table.
type format struct {
	value   string
	allowed []string
}

func newFormat(allowed ...string) *format {
	return &format{allowed: append([]string{short}, allowed...)}
}

// String, Set and Type implement pflag.Value.
func (f *format) String() string { return f.value }

// Set takes a value.
func (f *format) Set(s string) error {
	if strings.HasPrefix(s, jsonPath) && slices.ContainsFunc(f.allowed, func(a string) bool { return strings.HasPrefix(a, jsonPath) }) {
		f.value = s
		return nil
	}
	if !slices.Contains(f.allowed, s) {
		return fmt.Errorf("must be one of %s%s", strings.Join(f.allowed, ", "), nearest.Hint(s, f.allowed))
	}
	if f.value = s; s == short || s == asTable {
		f.value = ""
	}
	return nil
}

// Type is shown in the help.
func (f *format) Type() string { return strings.Join(f.allowed, "|") }

// wantsManifests reports whether whole manifests are printed.
func (f *format) wantsManifests() bool {
	return f.value == "json" || f.value == "yaml" || strings.HasPrefix(f.value, jsonPath)
}

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command, f *format) {
	cmd.Flags().VarP(f, "output", "o", "output format")
	completeFlag(cmd, "output", f.allowed...)
}
