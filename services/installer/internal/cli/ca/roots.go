package ca

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/caops"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
)

func newRoots(flags *meshflags.Flags) *cobra.Command {
	out := output.New(output.AsTable, "pem", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "roots",
		Short: "Show the root certificates that the mesh trusts",
		Long: `Show the root certificates of the trust bundle that the ca has published last: those of its signers, and those that --extra-roots-file of the ca adds.
While a rotation is under way these are the roots of both signers. -o pem is for programs that verify the mesh's certificates.`,
		Example: `  fairlead ca roots
  fairlead ca roots -o pem > roots.pem`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := caops.New(flags.Mesh(cmd)).Status(cmd.Context())
			switch {
			case err != nil:
				return err
			case len(status.Roots) == 0:
				return errors.New("the ca has published no roots yet; `fairlead ca status` shows its problems")
			case out.Value == "pem":
				for _, r := range status.Roots {
					if _, err := fmt.Fprint(cmd.OutOrStdout(), r.PEM); err != nil {
						return err
					}
				}
				return nil
			case out.Value != "":
				return structured.Print(cmd.OutOrStdout(), out.Value, status.Roots)
			}
			return caops.RootsTable(status.Roots).Write(cmd.OutOrStdout())
		},
	}
	output.Flag(cmd, out)
	addMesh(cmd, flags)
	return cmd
}
