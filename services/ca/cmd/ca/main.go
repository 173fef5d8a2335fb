// Command ca is Fairlead's certificate authority: it authenticates workloads and issues their certificates.
package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/ca/internal/server"
	"fairlead.dev/services/ca/internal/store"
)

func main() {
	process.Main("ca", func(ctx context.Context) error {
		return command().ExecuteContext(ctx)
	})
}

func command() *cobra.Command {
	var options server.Options
	cmd := &cobra.Command{
		Use:           "ca --ca-dir DIR --jwks-file FILE --issuer ISSUER",
		Short:         "Issue workload certificates",
		Long:          "ca authenticates workloads by token or certificate and issues X.509-SVIDs through Istio's CreateCertificate API.\n\nExit codes: 0 stopped when asked to, 1 failed (the message says the remedy), 2 wrong flags.",
		Args:          usage(cobra.NoArgs),
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Info().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), options)
		},
	}
	options.AddFlags(cmd.Flags())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return process.WithExitCode(err, process.ExitUsage) })
	cmd.AddCommand(rootCert())
	return cmd
}

func run(ctx context.Context, options server.Options) error {
	if err := server.Check(options); err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	return telemetry.Run(ctx, telemetry.RunConfig{Service: "ca", LogLevel: options.LogLevel, OTLPEndpoint: options.OTLPEndpoint}, func(log *slog.Logger, tel *telemetry.Telemetry) error {
		s, err := server.Open(ctx, options, server.Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
}

// rootCert prints the public root, for example to make the ConfigMap istio-ca-root-cert from it.
func rootCert() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "root-cert --ca-dir DIR",
		Short: "Print the ca's public root certificate in PEM",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return process.WithExitCode(fmt.Errorf("--ca-dir is required"), process.ExitUsage)
			}
			text, err := store.ReadCertificate(dir)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "ca-dir", "", "directory of the root (required)")
	return cmd
}

func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, values []string) error {
		return process.WithExitCode(args(cmd, values), process.ExitUsage)
	}
}
