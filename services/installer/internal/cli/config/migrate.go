package config

import (
	"errors"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/fileflag"
)

func newMigrate(env command.Env) *cobra.Command {
	return command.Group("migrate", "Rewrite objects as those of another API", newMigrateGatewayAPI(env))
}

func newMigrateGatewayAPI(env command.Env) *cobra.Command {
	var files []string
	var class, binDir string
	cmd := &cobra.Command{
		Use:   "gateway-api -f FILE|DIR|-",
		Short: "Rewrite Ingresses, Gateways and VirtualServices as objects of the Gateway API, with a proof",
		Long: `Print Gateways, HTTPRoutes and ReferenceGrants of the Gateway API that answer as the Ingresses, and the Gateways and VirtualServices of
networking.istio.io, in files do. Add the Services: that of the gateway says where the new Gateway is served.

The result is proven before it is printed: the order of all rules that one request may match is compared, and both sides answer some thousand requests,
made of the matches of both sides and at random, by the rules of the mesh. What the Gateway API cannot say, or what would answer otherwise, stays, and
is named on standard error with its file, object, field and remedy; so does what shares a host with it. The lines "replaced:" name the objects to remove
once the new ones are served: until then those of Istio's API win.

Exit code 0, whatever stays; 3 if an object of the files is refused.`,
		Example: `  fairlead migrate gateway-api -f mesh.yaml > gateway-api.yaml
  kubectl get ingress,svc,gateways.networking.istio.io,virtualservices -A -o yaml | fairlead migrate gateway-api -f -`,
		Args:              command.Args(cobra.ArbitraryArgs),
		ValidArgsFunction: complete.Files,
		RunE: func(cmd *cobra.Command, named []string) error {
			if files = append(files, named...); len(files) == 0 {
				return process.Usage(errors.New("name a file or a directory with -f; - is standard input"))
			}
			return env.Analysis(binDir).MigrateGatewayAPI(cmd.Context(), files, class, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &files, "file, directory, or - for standard input, also without a flag")
	fs.StringVar(&class, "class", "istio", "GatewayClass of the Gateways")
	fs.StringVar(&binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	return cmd
}
