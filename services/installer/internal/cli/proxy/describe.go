package proxy

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/describe/gather"
	"fairlead.dev/services/installer/internal/structured"
)

func newDescribe(env command.Env, flags *meshflags.Flags) *cobra.Command {
	return command.Group("describe", "Show what of the mesh concerns a Pod or a Service, and what is wrong with it",
		newDescribeKind(env, flags, "pod", "po", "pods"), newDescribeKind(env, flags, "service", "svc", "services"))
}

func newDescribeKind(env command.Env, flags *meshflags.Flags, kind string, aliases ...string) *cobra.Command {
	cfg := gather.Config{Kind: strings.ToUpper(kind[:1]) + kind[1:]}
	var binDir string
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:     kind + " NAME[.NAMESPACE]",
		Aliases: aliases,
		Short:   "Show which objects apply to a " + cfg.Kind + ", its mutual TLS, and what is wrong with it",
		Long: `Show which objects apply to a Pod or a Service: VirtualServices, DestinationRules and Sidecars, as the proxy of a client has them, Gateways that lead
there, PeerAuthentications, policies, EnvoyFilters and Telemetries; in a cluster also routes of the Gateway API, with their parents, which another
controller may serve: the mesh does not read them. It shows the certificate and the state of its proxy; the mode of mutual TLS of each port, and
how clients connect. Then it lists what is wrong: findings of ` + "`fairlead analyze`" +
			` about these objects, and what the running proxies show.

Rules are those that one proxy has: that of --from, else that of a Pod described or behind the Service, else another one of the mesh.

Exit code 0, whatever is found; 1 if there is no such Pod or Service. What cannot be read is named at the end.`,
		Example: `  fairlead describe ` + kind + ` reviews` + map[string]string{"pod": "-v1-0"}[kind] + `.default
  fairlead describe ` + kind + ` reviews` + map[string]string{"pod": "-v1-0"}[kind] + ` -n default --from productpage-v1-0 -o json`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cfg.Mesh, cfg.Analysis, cfg.Name = flags.Mesh(cmd), env.Analysis(binDir), a[0]
			d, err := gather.Describe(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if out.Value != "" {
				return structured.Print(cmd.OutOrStdout(), out.Value, d)
			}
			return d.Print(cmd.OutOrStdout(), time.Now())
		},
	}
	cmd.ValidArgsFunction = flags.CompleteServices(0)
	if kind == "pod" {
		cmd.ValidArgsFunction = flags.CompleteProxies()
	}
	fs := cmd.Flags()
	flags.AddNamespace(cmd, &cfg.Namespace, "namespace, if NAME does not say (default \"default\")")
	fs.StringVar(&cfg.From, "from", "", "proxy whose view of the rules is shown, NAME.NAMESPACE or the beginning of one")
	fs.StringVar(&binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	output.Flag(cmd, out)
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	return cmd
}
