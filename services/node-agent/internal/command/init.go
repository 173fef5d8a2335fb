package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// initialise makes the command "init"; Go reserves that name.
func initialise(stderr io.Writer) *cobra.Command {
	var flags config.RedirectFlags
	cmd := &cobra.Command{
		Use:     "init",
		Aliases: []string{"istio-iptables"},
		Short:   "Send the connections of this network namespace through its proxy",
		Long: "Puts rules into the network namespace that it runs in, so that connections go through the proxy: by default all TCP, as Istio's init\n" +
			"container does. It needs CAP_NET_ADMIN and the programs nft and, for TPROXY, ip. It may run again, and replaces what it did before.",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := config.ParseRedirect(cmd.Flags(), &flags, config.ThisHost(0, 0))
			if err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			log, err := telemetry.NewLogger(stderr, flags.LogLevel, "node-agent")
			if err != nil {
				return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
			}
			switch {
			case flags.DryRun:
				_, err = io.WriteString(cmd.OutOrStdout(), redirect.Plan(options))
				return err
			case flags.Cleanup:
				if err := redirect.Remove(cmd.Context(), options, redirect.Exec); err != nil {
					return err
				}
				log.Info("traffic is no longer redirected")
				return nil
			}
			if err := redirect.Apply(cmd.Context(), options, redirect.Exec); err != nil {
				return err
			}
			log.Info("traffic is redirected", "mode", options.Mode, "outbound", options.Outbound, "inbound", options.Inbound, "dns", options.RedirectDNS)
			log.Debug("rules in force", "rules", redirect.Plan(options))
			return nil
		},
	}
	flags.Register(cmd.Flags())
	return cmd
}
