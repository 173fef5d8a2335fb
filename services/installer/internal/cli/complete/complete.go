// Package complete has what completes arguments and values of flags in shells.
package complete

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Timeout bounds the calls of one completion: a person has pressed the tab key and waits.
const Timeout = 5 * time.Second

// Func is the type of cobra's functions that complete arguments and values of flags.
type Func = func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective)

// Flag makes values the completions of a flag. Registration fails only for a flag that the command lacks.
func Flag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// WithPrefix returns the names of the list that begin with text, sorted, each once.
func WithPrefix(list []string, text string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, text) })
	slices.Sort(list)
	return slices.Compact(list)
}
