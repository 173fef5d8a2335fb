package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/istioctl"
)

// knownCommand is the Args of a command that only groups others: cobra passes arguments to it only if the first names
// no sub-command.
func knownCommand(cmd *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	return process.Usagef("unknown command %q%s; see `%s --help`", a[0], commandHint(cmd, a), cmd.CommandPath())
}

// commandHint suggests a command for words that name none below cmd. It tries, in this order, the table of istioctl's
// commands for the root, the nearest name below cmd, the table for other commands, a flag of this name of a command
// below cmd, and a command of this name elsewhere in the tree.
func commandHint(cmd *cobra.Command, words []string) string {
	if cmd == cmd.Root() {
		if hint := istioctl.Hint(words); hint != "" {
			return hint
		}
	}
	word := words[0]
	names := map[string]string{}
	var candidates []string
	for _, sub := range cmd.Commands() {
		if sub.Hidden {
			continue
		}
		for _, name := range append([]string{sub.Name()}, sub.Aliases...) {
			names[name] = sub.CommandPath()
			candidates = append(candidates, name)
		}
	}
	if near := nearest.Name(word, candidates); near != "" {
		return fmt.Sprintf("; did you mean `%s`?", names[near])
	}
	if hint := istioctl.Hint(words); hint != "" {
		return hint
	}
	if found := withFlag(cmd, word); found != nil && cmd != cmd.Root() {
		return fmt.Sprintf("; did you mean `%s --%s`?", found.CommandPath(), word)
	}
	if found := findNamed(cmd.Root(), word); found != nil {
		return fmt.Sprintf("; did you mean `%s`?", found.CommandPath())
	}
	return ""
}

// withFlag finds a command directly below under with a flag.
func withFlag(under *cobra.Command, name string) *cobra.Command {
	for _, sub := range under.Commands() {
		if f := sub.Flags().Lookup(name); !sub.Hidden && f != nil && !f.Hidden {
			return sub
		}
	}
	return nil
}

// findNamed finds a command by its name or alias anywhere below under.
func findNamed(under *cobra.Command, name string) *cobra.Command {
	for _, sub := range under.Commands() {
		if sub.Hidden || sub.Name() == "completion" {
			continue
		}
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
		if found := findNamed(sub, name); found != nil {
			return found
		}
	}
	return nil
}

// flagHint suggests a flag, from pflag's error about an unknown one.
func flagHint(cmd *cobra.Command, err error) string {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return ""
	}
	if hint := istioctl.Flags[missing.GetSpecifiedName()]; hint != "" {
		return ": istioctl's; " + hint
	}
	if missing.GetSpecifiedShortnames() != "" {
		return ""
	}
	var candidates []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			candidates = append(candidates, f.Name)
		}
	}
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if near := nearest.Name(missing.GetSpecifiedName(), candidates); near != "" {
		return fmt.Sprintf("; did you mean --%s?", near)
	}
	return ""
}
