package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/istioctl"
)

// newExperimental is istioctl's group of experimental commands. Here none is: it runs the command of the same name.
func newExperimental(env command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "experimental COMMAND", Aliases: []string{"x", "exp"},
		Short: "Run a command by the name that it has among istioctl's experimental ones",
		Long: "Run a command by the name that it has, or had, among istioctl's experimental commands: `fairlead x precheck` is `fairlead " +
			"precheck`.",
		// Flags are those of the command that is run.
		DisableFlagParsing: true,
		ValidArgsFunction: func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(a) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var names []string
			for _, sub := range cmd.Root().Commands() {
				if !sub.Hidden && sub != cmd {
					names = append(names, sub.Name())
				}
			}
			return complete.WithPrefix(names, begun), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) == 0 || slices.Contains([]string{"-h", "--help", "help"}, a[0]) {
				return cmd.Help()
			}
			for _, sub := range cmd.Root().Commands() {
				if sub != cmd && (sub.Name() == a[0] || sub.HasAlias(a[0])) {
					return Run(cmd.Context(), env, a)
				}
			}
			hint := commandHint(cmd.Root(), a)
			if hint == "" {
				hint = istioctl.Hint(append([]string{cmd.Name()}, a...))
			}
			return process.Usagef("unknown command %q%s; see `%s --help`", a[0], hint, cmd.Root().CommandPath())
		},
	}
	return cmd
}
