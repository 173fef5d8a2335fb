package analysis

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
)

// Severity is a level of findings, as the value of --failure-threshold and --output-threshold.
type Severity string

// String and the next two methods implement pflag.Value.
func (s *Severity) String() string { return string(*s) }

// Set takes a value, in istioctl's spelling as well: "Warning".
func (s *Severity) Set(text string) error {
	if text = strings.ToLower(text); !slices.Contains(Severities, text) {
		return fmt.Errorf("must be one of %s%s", strings.Join(Severities, ", "), nearest.Hint(text, Severities))
	}
	*s = Severity(text)
	return nil
}

// Type is shown in the help.
func (s *Severity) Type() string { return strings.Join(Severities, "|") }
