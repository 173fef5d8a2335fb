// Command xds-server turns the mesh that config-watcher streams into xDS, and serves it to the proxies.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

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
	log, err := telemetry.NewLogger(os.Stderr, cfg.LogLevel, "xds-server")
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "xds-server", OTLPEndpoint: cfg.OTLPEndpoint, Log: log})
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--otlp-endpoint: %w", err), process.ExitUsage)
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := tel.Shutdown(flush); err != nil {
			log.Warn("traces not flushed", "error", err)
		}
	}()
	server, err := app.New(ctx, cfg, app.Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
