package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// initialise makes the command "init"; Go reserves that name.
func initialise(stderr io.Writer) *cobra.Command {
	return redirection(stderr, &cobra.Command{
		Use:     "init",
		Aliases: []string{"istio-iptables"},
		Short:   "Send the connections of this network namespace through its proxy",
		Long: "Puts rules into the network namespace that it runs in, so that connections go through the proxy: by default all TCP, as Istio's " +
			"init\n" +
			"container does. It needs CAP_NET_ADMIN, and no program where the kernel has nftables. It may run again, and replaces what it did " +
			"before.",
	}, false)
}

// clean makes the command "clean-iptables".
func clean(stderr io.Writer) *cobra.Command {
	return redirection(stderr, &cobra.Command{
		Use:     "clean-iptables",
		Aliases: []string{"istio-clean-iptables"},
		Short:   "Take out what init has put in: init --cleanup",
	}, true)
}

// redirection completes a command with the flags of "init". It takes the rules out if cleanup is true.
func redirection(stderr io.Writer, cmd *cobra.Command, cleanup bool) *cobra.Command {
	flags := config.RedirectFlags{}
	cmd.Args = usage(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options, err := config.ParseRedirect(cmd.Flags(), &flags, config.ThisHost(0, 0))
		if err != nil {
			return process.WithExitCode(err, process.ExitUsage)
		}
		log, err := telemetry.NewLogger(stderr, flags.LogLevel, "node-agent")
		if err != nil {
			return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
		}
		if flags.DryRun {
			_, err := io.WriteString(cmd.OutOrStdout(), redirect.Plan(options))
			return err
		}
		if flags.OwnRules && !cleanup && !flags.Cleanup {
			log.Info("no rules are written: ISTIO_CUSTOM_IP_TABLES says that this machine has its own")
			return nil
		}
		run := func() error { return setUp(cmd.Context(), &flags, options, cleanup || flags.Cleanup, log) }
		if flags.Namespace != "" {
			return redirect.In(flags.Namespace, run)
		}
		return run()
	}
	flags.Register(cmd.Flags())
	return cmd
}

// setUp does what the flags say, in the network namespace of its thread.
func setUp(ctx context.Context, flags *config.RedirectFlags, options *redirect.Options, cleanup bool, log *slog.Logger) error {
	if cleanup {
		if err := redirect.Remove(ctx, options, redirect.Exec); err != nil {
			return err
		}
		log.Info("traffic is no longer redirected")
		return nil
	}
	if !flags.SkipApply {
		backend, err := redirect.Apply(ctx, options, redirect.Exec)
		if err != nil {
			return err
		}
		log.Info("traffic is redirected", "by", backend, "mode", options.Mode, "outbound", options.Outbound, "inbound", options.Inbound, "dns",
			options.RedirectDNS)
		log.Debug("rules in force", "rules", redirect.Plan(options))
	}
	if !flags.Validate {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flags.ProbeTimeout)
	defer cancel()
	if err := redirect.Validate(ctx, options); err != nil {
		return process.WithExitCode(fmt.Errorf("this workload is not ready for the mesh: %w: "+
			"with the CNI plugin, the Pod began before the plugin was there; node-agent cni repairs or deletes it, or delete it yourself", err),
			redirect.ExitUnverified)
	}
	log.Info("the rules redirect traffic")
	return nil
}
