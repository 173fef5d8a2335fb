package config

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

func newWhoAmI(flags *meshflags.Flags) *cobra.Command {
	f := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show whom config-watcher takes you for, and what you may do",
		Args:  command.Args(cobra.NoArgs),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, _ []string, out io.Writer) error {
			res, err := client.WhoAmI(ctx, &configv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			if f.Value != "" {
				return structured.PrintMessage(out, f.Value, res)
			}
			fmt.Fprintf(out, "%s, by %s\n", res.GetIdentity(), res.GetMethod())
			tab := &table.Table{Header: []string{"ROLE", "NAMESPACES", "VERBS"}}
			for _, g := range res.GetGrants() {
				tab.Add(g.GetRole(), strings.Join(g.GetNamespaces(), ", "), strings.Join(g.GetVerbs(), ", "))
			}
			return tab.Write(out)
		}),
	}
	output.Flag(cmd, f)
	flags.AddCluster(cmd)
	return cmd
}
