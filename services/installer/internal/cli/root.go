// Package cli is the command line of fairlead: Run builds the tree of commands (newRoot), and each file holds one
// command or what several share. Commands reach a mesh in three ways: target.call makes calls to config-watcher
// (package configapi), meshclient.Proxy.ask reads debug pages of xds-servers (package opsclient), and envoyadmin asks an
// Envoy. In a cluster they go through package controlplane. `up`, `down`, `restart`, `scale`, `demo`, `logs` and
// `credentials` work on the local runtime, package local and those below it. cmd/fairlead/main.go calls Run.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/versions"
)

// Env is what commands use of the process that they run in; tests replace it.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Executable is the path of this program. The other programs are looked for in its directory.
	Executable string
	// Getenv reads the environment.
	Getenv func(string) string
}

// Programs finds Fairlead's programs in a directory; "" means that of this one.
func (e Env) programs(dir string) programs.Finder {
	return programs.Finder{Executable: e.Executable, BinDir: dir, Getenv: e.Getenv}
}

// Analysis runs config-watcher's judgement of objects, of the program in a directory; "" means that of this one.
func (e Env) analysis(dir string) analysis.Program {
	return analysis.Program{Finder: e.programs(dir), In: e.In}
}

// Run runs a command line. process.Main takes the exit code from the error.
func Run(ctx context.Context, env Env, args []string) error {
	root := newRoot(env)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if way := inCluster[strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")]; way != "" && errors.Is(err, rundir.ErrNoMesh) {
		return fmt.Errorf("%w; for a mesh in a cluster: %s", err, way)
	}
	return err
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

func newRoot(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "fairlead",
		Short:         "Run and operate a Fairlead service mesh",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versions.Text(version.Info()),
		Args:          knownCommand,
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
		return process.Usage(fmt.Errorf("%w%s; see `%s --help`", err, flagHint(cmd, err), cmd.CommandPath()))
	})
	mesh := newMeshFlags(root.PersistentFlags(), env.Getenv)
	root.AddCommand(
		newUp(env, mesh), newDown(mesh), newRestart(mesh), newScale(mesh), newDemo(env),
		newConfig(env, mesh), newProxyStatus(mesh), newProxyConfig(env, mesh), newWhy(mesh), newDescribe(env, mesh), newWait(mesh),
		newDashboard(mesh), newBugReport(env, mesh), newProxy(mesh), newLogs(mesh),
		newCredentials(mesh), newRemoteClusters(mesh), newManifest(env), newProfile(env), newValidate(env), newAnalyze(env),
		newVersion(env, mesh),
		newTag(env), newInstall(env), newUpgrade(env), newRollback(env), newUninstall(env), newDiff(env), newVerifyInstall(env),
		newPrecheck(env), newCheckInject(), newKubeInject(env), newVM(), newWorkload(), newExperimental(env), newExitCodes(), newOperator(env),
	)
	completeWithoutPackage(root)
	complete(root)
	return root
}

// complete turns the completion of file names off for every command without ValidArgsFunction.
func complete(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// args wraps a check of arguments: its error gets the exit code for wrong usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return process.Usage(fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath()))
		}
		return nil
	}
}

// group returns a command that only has sub-commands. Called alone, it prints its help; an unknown sub-command is wrong
// usage.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}

const exitCodes = `Exit codes of fairlead and of Fairlead's services:

  0  it did what was asked, or was stopped by a signal and has ended everything
  1  it failed while running: a server that cannot be reached, a proxy that rejected or did not take a change in time,
     an address that is in use; or what was named does not exist: an object, a proxy, a namespace. A list without entries is
     no failure. manifest diff: something differs. precheck: something hinders an installation
  2  wrong usage: an unknown command or flag, a value that cannot be
  3  refused input: a mesh file or an object is not valid; the message names file, object, field and remedy, and nothing was
     changed

fairlead diff has one more:

  4  an installation would change something

fairlead analyze has two more, which are istioctl's:

  65 a text is no object
  79 it has found something as bad as --failure-threshold
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodes}
}
