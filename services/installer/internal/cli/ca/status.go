package ca

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/caops"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
)

func newStatus(env command.Env, flags *meshflags.Flags) *cobra.Command {
	out := output.New(output.AsTable, "json", "yaml")
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who signs the mesh's certificates, and how far a rotation is",
		Long: `Show who signs the mesh's certificates, and how far a rotation is: the step, what it waits for and for whom (the first 100 by name), the signers with
their roots, how many holders have certificates of each, the replicas of the ca, and problems with their remedies.

  prepare  the next signer makes its keys and issues a certificate, which the ca checks
  trust    its roots go into the trust bundle
  gate     every holder of a certificate comes to trust them
  issue    every replica of the ca issues from the new signer
  renew    every certificate of the signer before is replaced
  retire   roots that no certificate needs leave the trust bundle

HOLDER is the name that ` + "`fairlead ca rotate --accept`" + ` takes. GENERATION is the newest trust bundle that the holder is known to have, SIGNER the number of
the signer of its certificate.

-w goes on: it draws the status again on a terminal, and prints a line for each change elsewhere. It ends by itself when the rotation that was under way
at its start has ended, however it did; without one it goes on until it is interrupted. A ca that does not answer meanwhile is asked again.

Exit code 0 if the ca has answered, whatever its state; 1 if it could not be asked.`,
		Example: `  fairlead ca status
  fairlead ca status -w
  fairlead ca status -o json`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch && out.Value != "" {
				return process.Usage(errors.New("-w prints lines for people: leave out -o"))
			}
			client := caops.New(flags.Mesh(cmd))
			status, err := client.Status(cmd.Context())
			switch {
			case err != nil:
				return err
			case watch:
				client.Follow(cmd.Context(), status, newView(env, cmd.OutOrStdout()), clock.Real())
				return nil
			case out.Value != "":
				return structured.Print(cmd.OutOrStdout(), out.Value, status)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(caops.Lines(status, time.Now()), "\n"))
			return err
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on, until the rotation that is under way has ended")
	output.Flag(cmd, out)
	addMesh(cmd, flags)
	return cmd
}

// newView returns a view that draws on a terminal, and one that prints lines to out elsewhere.
func newView(env command.Env, out io.Writer) caops.View {
	if file, ok := env.Out.(*os.File); ok && term.IsTerminal(int(file.Fd())) && env.Getenv("TERM") != "dumb" {
		return &caops.Screen{W: file, Clock: clock.Real(), Size: func() (int, int) {
			width, height, err := term.GetSize(int(file.Fd()))
			if err != nil {
				return 0, 24
			}
			return width, height
		}}
	}
	return &caops.Plain{W: out, Clock: clock.Real()}
}
