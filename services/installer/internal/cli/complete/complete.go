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

// Names completes by those names that begin as what was typed, sorted. A completion prints no errors: without names
// there is nothing to choose.
func Names(names func(cmd *cobra.Command, a []string) []string) Func {
	return func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		return WithPrefix(names(cmd, a), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// Files completes by the names of files.
func Files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// Flag makes values the completions of a flag.
func Flag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// WithPrefix returns the names of the list that begin with text, sorted, each once.
func WithPrefix(list []string, text string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, text) })
	slices.Sort(list)
	return slices.Compact(list)
}
