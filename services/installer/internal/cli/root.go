// Package cli is the command line of fairlead: Run builds the tree of commands and runs one; this package has the root,
// what it suggests for unknown names, and exit codes. Each group of commands is a package below with a file for each
// command, which parses, calls and prints: config, proxy, authz, mesh, multicluster, ca, cluster, local and
// install. What they call is beside cli; packages meshflags, kubeflags and installflags have the flags that several
// share. cmd/fairlead/main.go calls Run.
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/cli/authz"
	"fairlead.dev/services/installer/internal/cli/ca"
	"fairlead.dev/services/installer/internal/cli/cluster"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/config"
	"fairlead.dev/services/installer/internal/cli/install"
	"fairlead.dev/services/installer/internal/cli/local"
	"fairlead.dev/services/installer/internal/cli/mesh"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/multicluster"
	"fairlead.dev/services/installer/internal/cli/proxy"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/versions"
)

// Run runs a command line. process.Main takes the exit code from the error.
func Run(ctx context.Context, env command.Env, args []string) error {
	root := newRoot(env)
	root.SetArgs(kindAndName(args))
	cmd, err := root.ExecuteContextC(ctx)
	if way := inCluster[strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")]; way != "" && errors.Is(err, rundir.ErrNoMesh) {
		return fmt.Errorf("%w; for a mesh in a cluster: %s", err, way)
	}
	return err
}

// kindAndName takes `describe KIND/NAME`, which kubectl's users write, for `describe KIND NAME`.
func kindAndName(args []string) []string {
	if len(args) < 2 || args[0] != "describe" {
		return args
	}
	kind, name, found := strings.Cut(args[1], "/")
	if !found {
		return args
	}
	return slices.Concat([]string{args[0], kind, name}, args[2:])
}

// inCluster says what those do who have a mesh in a cluster, by the command that is for meshes on this machine.
var inCluster = map[string]string{
	"logs":          "kubectl logs -n NAMESPACE POD -c istio-proxy",
	"restart":       "kubectl rollout restart -n NAMESPACE deployment/NAME",
	"scale":         "kubectl scale -n NAMESPACE deployment/NAME --replicas=N",
	"config apply":  "kubectl apply -f FILE",
	"config edit":   "kubectl edit -n NAMESPACE KIND NAME",
	"config delete": "kubectl delete -n NAMESPACE KIND NAME",
}

func newRoot(env command.Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "fairlead",
		Short:         "Run and operate a Fairlead service mesh",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versions.Text(version.Info()),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	// istioctl calls the flag for dumps --file, kubectl the flag for objects --filename. Here they are one flag.
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "file" {
			name = "filename"
		}
		return pflag.NormalizedName(name)
	})
	root.SetIn(env.In)
	root.SetOut(terminal.Safe(env.Out))
	root.SetErr(terminal.Safe(env.Err))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// For an unknown command with flags, pflag fails before cobra looks at the command. The error names the
		// command.
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			return knownCommand(cmd, words)
		}
		return process.Usagef("%w%s; see `%s --help`", err, flagHint(cmd, err), cmd.CommandPath())
	})
	flags := meshflags.New(root.PersistentFlags(), env.Getenv)
	root.AddCommand(config.Commands(env, flags)...)
	root.AddCommand(proxy.Commands(env, flags)...)
	root.AddCommand(authz.Commands(env, flags)...)
	root.AddCommand(mesh.Commands(env, flags)...)
	root.AddCommand(multicluster.Commands()...)
	root.AddCommand(ca.Commands(env, flags)...)
	root.AddCommand(cluster.Commands(env)...)
	root.AddCommand(local.Commands(env, flags)...)
	root.AddCommand(install.Commands(env)...)
	root.AddCommand(newExperimental(env), newExitCodes())
	completeWithoutPackage(root)
	finish(root)
	return root
}

// finish turns the completion of file names off for every command without ValidArgsFunction, and has those that only
// group others suggest one for an unknown name.
func finish(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if cmd.HasSubCommands() && cmd.Args == nil {
		cmd.Args = knownCommand
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}
