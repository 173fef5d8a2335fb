package proxy

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/describe/answering"
	"fairlead.dev/services/installer/internal/describe/apiobject"
	"fairlead.dev/services/installer/internal/describe/gather"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/structured"
)

func newDescribe(env command.Env, flags *meshflags.Flags) *cobra.Command {
	commands := []*cobra.Command{
		newDescribeKind(env, flags, "pod", "po", "pods"), newDescribeKind(env, flags, "service", "svc", "services"), newDescribeGateway(flags),
	}
	for _, kind := range apiobject.Kinds {
		if kind != describe.APIGateway {
			commands = append(commands, newDescribeAPI(flags, kind))
		}
	}
	return command.Group("describe",
		"Show what of the mesh concerns a Pod or a Service, what becomes of an object of the Gateway API, and what is wrong", commands...)
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
there, routes of the Gateway API with what their parents say of them, PeerAuthentications, policies, EnvoyFilters and Telemetries. Of the Pod of a gateway
it shows the Gateways of the Gateway API that it serves. It shows the certificate and the state of its proxy; the mode of mutual TLS of each port, and
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
		Use:     "gateway NAME[.NAMESPACE] [--request \"METHOD HOST/PATH\"]",
		Aliases: []string{"gtw", "gateways"},
		Short:   "Show a Gateway of the Gateway API with its listeners and routes, or which rule answers a request at it",
		Long: `Show a Gateway of the Gateway API: its class, addresses and conditions, its listeners, and the routes and ListenerSets that name it, with what keeps one
from being attached.

With --request, show which rule of which HTTPRoute or GRPCRoute answers a request there, as xds-server serves it. Then come the rules that match the
request too, and by which step of the order they come later; and those for the same domain that no request ever reaches, because others take all that
they would take. HOST may have a scheme and a port; without, the port 80 is meant if a listener there takes the host, else 443, else the only one.

Exit code 0, whatever is found; 1 if the mesh has, or serves, no such Gateway.`,
		Example: `  fairlead describe gateway/shop.infra
  fairlead describe gateway/shop.infra --request "GET shop.example.com/cart"
  fairlead describe gateway shop -n infra --request "POST https://shop.example.com/cart?beta=1" --header "x-user: 7" -o json`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if !cmd.Flags().Changed("request") {
				if len(r.Headers) > 0 {
					return process.Usagef("--header needs --request: write the request that has it")
				}
				return describeAPI(cmd, flags, describe.APIGateway, a[0], r.Namespace, out.Value)
			}
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
	fs.StringVar(&r.Line, "request", "", "request, \"METHOD HOST/PATH\"")
	fs.StringArrayVar(&r.Headers, "header", nil, "header of the request, \"NAME: VALUE\"; may be repeated")
	output.Flag(cmd, out)
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	return cmd
}

// describeAPI prints the description of an object of the Gateway API.
func describeAPI(cmd *cobra.Command, flags *meshflags.Flags, kind, name, namespace, format string) error {
	d, err := apiobject.Ask(cmd.Context(), flags.Mesh(cmd), kind, name, namespace)
	switch {
	case err != nil:
		return err
	case format != "":
		return structured.Print(cmd.OutOrStdout(), format, d)
	}
	return d.Print(cmd.OutOrStdout())
}

// newDescribeAPI describes objects of a kind of the Gateway API.
func newDescribeAPI(flags *meshflags.Flags, kind string) *cobra.Command {
	var namespace string
	lower := strings.ToLower(kind)
	out := output.New("json", "yaml")
	use, example := lower+" NAME[.NAMESPACE]", lower+"/cart.shop"
	shows := "its hosts and parents with what they say of it, its rules, and backends that cannot be resolved"
	switch kind {
	case "ListenerSet":
		shows, example = "its Gateway, its listeners, and the routes that name it", "listenerset/team.shop"
	case "BackendTLSPolicy":
		shows, example = "its targets, and what the Gateways that lead there say of it", "backendtlspolicy/cart.shop"
	case "GatewayClass":
		use, shows, example = lower+" NAME", "its controller and its Gateways", "gatewayclass/istio"
	}
	cmd := &cobra.Command{
		Use:     use,
		Aliases: []string{kinds.Plural(lower)},
		Short:   fmt.Sprintf("Show a %s with %s", kind, shows),
		Long: fmt.Sprintf(`Show a %s of the Gateway API with %s. config-watcher has computed all of it from the objects in force; Programmed says whether
the proxies have acknowledged it.

Exit code 0, whatever is found; 1 if the mesh has no such object.`, kind, shows),
		Example: "  fairlead describe " + example + "\n  fairlead describe " + example + " -o json",
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return describeAPI(cmd, flags, kind, a[0], namespace, out.Value)
		},
	}
	if !kinds.ClusterScoped[kind] {
		flags.AddNamespace(cmd, &namespace, "namespace, if NAME does not say (default \"default\")")
	}
	output.Flag(cmd, out)
	flags.Add(cmd.Flags())
	flags.AddCluster(cmd)
	return cmd
}
