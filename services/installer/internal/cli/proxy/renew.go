package proxy

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/renewal"
	"fairlead.dev/services/installer/internal/structured"
)

func newProxy(flags *meshflags.Flags) *cobra.Command {
	return command.Group("proxy", "Operate a proxy", newProxyRenew(flags))
}

func newProxyRenew(flags *meshflags.Flags) *cobra.Command {
	f := output.New("json", "yaml")
	var timeout time.Duration
	var namespace string
	cmd := &cobra.Command{
		Use:   "renew PROXY",
		Short: "Renew a proxy's certificate now",
		Long: `Renew a proxy's certificate now, and wait until its Envoy has the new one.

PROXY is NAME.NAMESPACE, NAME, or a beginning of it that only one proxy has, pod/NAME, or deploy/NAME for the first of a Deployment's Pods. An agent
takes one such order a second.`,
		Args: command.Args(cobra.ExactArgs(1)),

		ValidArgsFunction: flags.CompleteProxies(),
		RunE: func(cmd *cobra.Command, a []string) error {
			r, err := renewal.Renew(cmd.Context(), flags.Mesh(cmd), a[0], namespace, timeout)
			if err != nil {
				return err
			}
			if f.Value != "" {
				return structured.Print(cmd.OutOrStdout(), f.Value, r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: renewed after %.0f ms\n  before: %s\n  after:  %s\n",
				r.Proxy, r.Milliseconds, certificateText(r.Before), certificateText(r.After))
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "how long to wait for the new certificate")
	flags.AddNamespace(cmd, &namespace, "namespace of the proxy, if PROXY does not say")
	output.Flag(cmd, f)
	flags.AddCluster(cmd)
	return cmd
}

func certificateText(c *envoyadmin.Certificate) string {
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("serial %s, expires %s", c.Serial, c.NotAfter.UTC().Format(time.RFC3339))
}
