// Command config-watcher reads the mesh's configuration, validates and normalises it, and streams it to the xds-servers.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/config-watcher/internal/service"
)

func main() {
	// The mesh is held here once for all xds-servers and changes little at a time: memory matters more than what the collector takes of
	// a core. GOGC in the environment wins.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	process.Main("config-watcher", func(ctx context.Context) error {
		return command().ExecuteContext(ctx)
	})
}

func command() *cobra.Command {
	var options service.Options
	cmd := &cobra.Command{
		Use:   "config-watcher --root-cert-file FILE [--config-dir DIR]... [--store-dir DIR]",
		Short: "Read, validate and stream the mesh's configuration",
		Long: "config-watcher reads Istio's and Kubernetes' objects from files and from its configuration API, validates and normalises them,\n" +
			"numbers the states of the mesh and streams them to the xds-servers.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 failed at run time, 2 wrong flags, a directory that another config-watcher uses, or a\n" +
			"key that does not decrypt what is there. A broken object never ends the process: it is reported in the log, in metrics and at\n" +
			"/debug/sources, and its last good version stays, across restarts with --state-dir.",
		Args:          usage(cobra.NoArgs),
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Info().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), options)
		},
	}
	options.AddFlags(cmd.Flags())
	cmd.SetOut(terminal.Safe(os.Stdout))
	cmd.SetErr(terminal.Safe(os.Stderr))
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(newValidate())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return process.WithExitCode(err, process.ExitUsage) })
	return cmd
}

func run(ctx context.Context, options service.Options) error {
	if err := service.Check(options); err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	return telemetry.Run(ctx, telemetry.RunConfig{Service: "config-watcher", LogLevel: options.LogLevel, OTLPEndpoint: options.OTLPEndpoint}, func(log *slog.Logger, tel *telemetry.Telemetry) error {
		s, err := service.Open(ctx, options, service.Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
}

func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, values []string) error {
		return process.WithExitCode(args(cmd, values), process.ExitUsage)
	}
}
