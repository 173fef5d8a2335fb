package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/togateway"
)

// newMigrate is `config-watcher migrate-gateway-api`, which `fairlead migrate gateway-api` runs.
func newMigrate() *cobra.Command {
	cfg := togateway.Config{}
	cmd := &cobra.Command{
		Use:   "migrate-gateway-api [--class CLASS] FILE|DIR|-...",
		Short: "Rewrite Ingresses, Gateways and VirtualServices as objects of the Gateway API",
		Long: "migrate-gateway-api prints objects of the Gateway API that answer as the Ingresses, Gateways and\n" +
			"VirtualServices of the files do.\n" +
			"What stays is named on standard error. `fairlead migrate gateway-api --help` describes it.\n\n" +
			"Exit codes: 0 done, whatever stays, 2 wrong usage or a path that cannot be read, 3 an object is refused.",
		Args: service.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				return process.WithExitCode(errors.New("name files or directories of objects; - is the standard input"),
					process.ExitUsage)
			}
			objects, problems, err := togateway.Read(paths, cmd.InOrStdin())
			if err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			if len(problems) > 0 {
				return process.WithExitCode(problems, process.ExitRefused)
			}
			r := togateway.Convert(cfg, objects)
			if err := r.Write(cmd.OutOrStdout()); err != nil {
				return err
			}
			for _, k := range r.Kept {
				fmt.Fprintln(cmd.ErrOrStderr(), "stays: "+k.String())
			}
			for _, k := range r.Remarks {
				fmt.Fprintln(cmd.ErrOrStderr(), "remark: "+k.String())
			}
			for _, k := range lists.Map(r.Replaced, object.Key.String) {
				fmt.Fprintln(cmd.ErrOrStderr(), "replaced: "+k)
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(),
				"%d objects made, %d replaced, %d stay or are named; %d requests are answered alike\n",
				len(r.Objects), len(r.Replaced), len(r.Kept), r.Requests)
			return err
		},
	}
	cmd.Flags().StringVar(&cfg.Class, "class", "istio", "GatewayClass of the Gateways")
	cmd.Flags().StringVar(&cfg.Domain, "domain", "cluster.local", "DNS suffix of Services")
	return cmd
}
