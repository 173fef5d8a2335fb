// Package command has what commands are made with: the process that they run in, checks of arguments, questions, and
// groups.
package command

import (
	"io"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/local/programs"
)

// Env is what commands use of the process that they run in; tests replace it.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Executable is the path of this program. The other programs are looked for in its directory.
	Executable string
	// Getenv reads the environment.
	Getenv func(string) string
}

// Programs finds Fairlead's programs in a directory; "" means that of this one.
func (e Env) Programs(dir string) programs.Finder {
	return programs.Finder{Executable: e.Executable, BinDir: dir, Getenv: e.Getenv}
}

// Analysis runs config-watcher's judgement of objects, of the program in a directory; "" means that of this one.
func (e Env) Analysis(dir string) analysis.Program {
	return analysis.Program{Finder: e.Programs(dir), In: e.In}
}

// Args wraps a check of arguments: its error gets the exit code for wrong usage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return process.Usagef("%w; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
}

// Group returns a command that only has sub-commands. Called alone, it prints its help.
func Group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(subs...)
	return cmd
}
