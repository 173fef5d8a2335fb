package service

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/version"
)

// flushTimeout bounds how long the last traces may take to leave.
const flushTimeout = 3 * time.Second

// Main runs the root command of a program and exits; see process.Main.
func Main(root *cobra.Command) { process.Main(root.Name(), root.ExecuteContext) }

// Root completes the root command of a program: wrong flags exit with process.ExitUsage, only Main prints errors, and
// it takes no arguments unless it says otherwise.
func Root(root *cobra.Command) *cobra.Command {
	if root.Args == nil {
		root.Args = Args(cobra.NoArgs)
	}
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Version = version.Info().String()
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return process.WithExitCode(err, process.ExitUsage) })
	return root
}

// Args makes wrong arguments exit with process.ExitUsage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return process.WithExitCode(check(cmd, args), process.ExitUsage)
	}
}

// Flags are the options of a service, which embed Options.
type Flags interface {
	AddFlags(*pflag.FlagSet)
	Common() *Options
}

// Runner is an opened service: a Process, or what embeds one.
type Runner interface {
	Run(context.Context) error
}

// Command completes the root command of a service, named by the first word of Use: it reads the flags, calls open with
// the log on standard error, metrics and traces, runs what open returns, and sends the last traces.
func Command[F Flags, R Runner](root *cobra.Command, flags F, open func(context.Context, F, Deps) (R, error)) *cobra.Command {
	flags.AddFlags(Root(root).Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, o, name := cmd.Context(), flags.Common(), cmd.Name()
		log, err := telemetry.NewLogger(os.Stderr, o.LogLevel, name)
		if err != nil {
			return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
		}
		tel, err := telemetry.Setup(ctx, telemetry.Config{Service: name, OTLPEndpoint: o.OTLPEndpoint, Log: log})
		if err != nil {
			return process.WithExitCode(fmt.Errorf("--otlp-endpoint: %w", err), process.ExitUsage)
		}
		defer func() {
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
			defer cancel()
			if err := tel.Shutdown(flush); err != nil {
				log.Warn("traces not flushed", "error", err)
			}
		}()
		s, err := open(ctx, flags, Deps{Log: log, Registry: tel.Registry, Tracer: tel.TracerProvider})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	}
	return root
}
