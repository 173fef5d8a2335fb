package config

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
)

// errNotAllowed is can-i's error for "no"; it makes the command exit with 1.
var errNotAllowed = errors.New("no")

func newCanI(flags *meshflags.Flags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "can-i VERB [KIND]",
		Short:   "Tell whether you may do something, and if not, why",
		Long:    "Verbs are get, list, watch, create, update, patch and delete; -n \"\" is all namespaces. Exit code 1 means no.",
		Example: "  fairlead config can-i update VirtualService -n shop",
		Args:    command.Args(cobra.RangeArgs(1, 2)),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			req := &configv1.CanIRequest{Verb: a[0], Namespace: namespace}
			if len(a) == 2 {
				kind, err := kinds.Parse(a[1])
				if err != nil {
					return err
				}
				req.Kind = kind
			}
			res, err := client.CanI(ctx, req)
			if err != nil {
				return err
			}
			if !res.GetAllowed() {
				return fmt.Errorf("%w: %s", errNotAllowed, res.GetReason())
			}
			fmt.Fprintln(out, "yes")
			return nil
		}),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace")
	flags.AddCluster(cmd)
	return cmd
}
