package proxy

import (
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/proxystatus"
)

func newProxyStatus(flags *meshflags.Flags) *cobra.Command {
	var o proxystatus.Options
	out := output.New("wide", "json", "yaml")
	cmd := &cobra.Command{
		Use:     "proxy-status [PROXY]",
		Aliases: []string{"ps"},
		Short:   "Show what each proxy was sent, has acknowledged and has rejected",
		Long: `Show what each proxy was sent, has acknowledged and has rejected: a row for each proxy and a column for each xDS type.

  SYNCED    the proxy holds what it should: it has acknowledged all it was sent, and nothing waits
  STALE     a response was sent and not answered yet, or resources wait to be sent
  NOT SENT  the proxy is connected and has nothing of the type
  ERROR     the proxy has rejected a response, or xds-server could not build what it is to have; the proxy keeps what it has
  -         the proxy has not asked for the type

VERSION is Envoy's, AGENT that of the agent beside it, and REVISION the control plane's that injected the proxy: who has earlier ones than the control
plane starts again. While no xds-server reports, the rows are what was last reported, which standard error says.

With PROXY or -v it is a row for each proxy and type, with the revisions sent, acknowledged and rejected, the bytes sent on this connection, and
what waits; reasons of rejections follow the table, and after them the streams that an xds-server has refused in the last ten minutes because
their identity uses more than it may. PROXY is NAME.NAMESPACE, NAME, or a beginning of it, pod/NAME or deploy/NAME.

A revision numbers a state of the mesh's configuration: what a proxy has acknowledged does not go backwards, also over restarts.

Exit code 0, with a line on standard error, if the namespace or the selector has no proxies; 1 if there is no such namespace or proxy.`,
		Example: `  fairlead proxy-status
  fairlead proxy-status reviews-v1-0.default
  fairlead proxy-status deploy/reviews-v1 -n default
  fairlead proxy-status -l app=reviews -o wide`,
		Args:              command.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: flags.CompleteProxies(),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Proxy, o.Output = strings.Join(a, ""), out.Value
			return proxystatus.Show(cmd.Context(), flags.Mesh(cmd), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags.AddSelection(cmd, &o.Selection, "of the proxies (default: all)")
	meshflags.AddSelector(cmd, &o.Selection, "workload's labels")
	cmd.Flags().BoolVarP(&o.Verbose, "verbose", "v", false, "a row for each proxy and type")
	output.Flag(cmd, out)
	flags.AddServers(cmd.Flags())
	flags.AddCluster(cmd)
	return cmd
}
