// Command xds-server turns the mesh that config-watcher streams into xDS, and serves it to the proxies.
package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/options"
)

func main() {
	process.Main("xds-server", func(ctx context.Context) error { return command().ExecuteContext(ctx) })
}

func command() *cobra.Command {
	var opts options.Options
	cmd := &cobra.Command{
		Use:   "xds-server --config-watcher-address HOST:PORT --ca-address HOST:PORT --root-cert-file FILE",
		Short: "Serve xDS to the mesh's proxies",
		Long: "xds-server follows the mesh that config-watcher streams, builds each proxy's Envoy configuration and serves it by ADS, delta and " +
			"state of the world.\n\nExit codes: 0 stopped when asked to, 1 failed (the message says why), 2 wrong flags.",
		Args: func(cmd *cobra.Command, args []string) error {
			return process.WithExitCode(cobra.NoArgs(cmd, args), process.ExitUsage)
		},
		SilenceUsage: true, SilenceErrors: true,
		Version: version.Info().String(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return process.WithExitCode(err, process.ExitUsage) })
	return cmd
}

func run(ctx context.Context, opts options.Options) error {
	cfg, err := opts.Check()
	if err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	return telemetry.Run(ctx, telemetry.RunConfig{Service: "xds-server", LogLevel: cfg.LogLevel, OTLPEndpoint: cfg.OTLPEndpoint}, func(log *slog.Logger, tel *telemetry.Telemetry) error {
		s, err := app.New(ctx, cfg, app.Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
}
