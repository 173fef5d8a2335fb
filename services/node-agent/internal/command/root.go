// Package command is the command line of node-agent: Root makes the commands "proxy" (runs the agent), "init" (package
// redirect), "request" and "wait" (clients of a running agent's Envoy) and "version".
package command

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/node-agent/internal/app"
	"fairlead.dev/services/node-agent/internal/config"
)

// Root makes the command tree, writing to the given streams.
func Root(stdout, stderr io.Writer) *cobra.Command {
	root := service.Root(&cobra.Command{
		Use:   "node-agent",
		Short: "Identity, configuration and life cycle of a workload's Envoy",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	})
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(proxy(stdout, stderr), initialise(stderr), request(), wait(), versionCommand())
	return root
}

func proxy(stdout, stderr io.Writer) *cobra.Command {
	var flags config.Flags
	cmd := &cobra.Command{
		Use:   "proxy sidecar|router",
		Short: "Run Envoy and everything it needs on this machine",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var files unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
				return fmt.Errorf("limit of open files: %w", err)
			}
			c, err := config.Parse(args[0], flags, config.ThisHost(files.Cur, runtime.NumCPU()))
			if err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			log, err := telemetry.NewLogger(stderr, c.LogLevel, "node-agent")
			if err != nil {
				return process.WithExitCode(fmt.Errorf("--log-level: %w", err), process.ExitUsage)
			}
			return app.Run(cmd.Context(), c, log, app.Output{Stdout: stdout, Stderr: stderr})
		},
	}
	flags.Register(cmd.Flags())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which build this is, as JSON",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			build := version.Info()
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(build)
		},
	}
}

// usage makes a wrong number of arguments an error of exit code process.ExitUsage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return process.WithExitCode(fmt.Errorf("%w\nusage: %s", err, cmd.UseLine()), process.ExitUsage)
		}
		return nil
	}
}
