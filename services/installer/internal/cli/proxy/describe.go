package proxy

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/describe/answering"
	"fairlead.dev/services/installer/internal/describe/gather"
	"fairlead.dev/services/installer/internal/structured"
)

func newDescribe(env command.Env, flags *meshflags.Flags) *cobra.Command {
	return command.Group("describe", "Show what of the mesh concerns a Pod or a Service, and what is wrong with it; who answers at a Gateway",
		newDescribeKind(env, flags, "pod", "po", "pods"), newDescribeKind(env, flags, "service", "svc", "services"), newDescribeGateway(flags))
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

func newDescribeGateway(flags *meshflags.Flags) *cobra.Command {
	var r answering.Request
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:     "gateway NAME[.NAMESPACE] --request \"METHOD HOST/PATH\"",
		Aliases: []string{"gtw", "gateways"},
		Short:   "Show which rule of the Gateway API answers a request at a Gateway, and why no other does",
		Long: `Show which rule of which HTTPRoute or GRPCRoute answers a request at a Gateway of the Gateway API, as xds-server serves it. Then come the rules that
match the request too, and by which step of the order they come later; and those for the same domain that no request ever reaches, because others take
all that they would take. HOST may have a scheme and a port; without, the port 80 is meant if the Gateway has it, else 443, else its only one.

Exit code 0, whoever answers; 1 if the mesh serves no such Gateway.`,
		Example: `  fairlead describe gateway/shop.infra --request "GET shop.example.com/cart"
  fairlead describe gateway shop -n infra --request "POST https://shop.example.com/cart?beta=1" --header "x-user: 7" -o json`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			r.Gateway = a[0]
			answer, err := answering.Ask(cmd.Context(), flags.Mesh(cmd), r)
			switch {
			case err != nil:
				return err
			case out.Value != "":
				return structured.Print(cmd.OutOrStdout(), out.Value, answer)
			}
			return answering.Print(cmd.OutOrStdout(), answer)
		},
	}
	fs := cmd.Flags()
	flags.AddNamespace(cmd, &r.Namespace, "namespace, if NAME does not say (default \"default\")")
	fs.StringVar(&r.Line, "request", "", "request, \"METHOD HOST/PATH\"; required")
	fs.StringArrayVar(&r.Headers, "header", nil, "header of the request, \"NAME: VALUE\"; may be repeated")
	output.Flag(cmd, out)
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	return cmd
}
