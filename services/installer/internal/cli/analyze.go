package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/programs"
)

// analyzeFlags are the flags of `fairlead analyze`.
type analyzeFlags struct {
	files                                        []string
	kube, all, recursive, ignore, list           bool
	kubeconfig, context, namespace, mesh, binDir string
	threshold, show                              severity
	suppress                                     []string
	timeout                                      time.Duration
	out                                          *format
}

// severity is the value of --failure-threshold and --output-threshold.
type severity string

// severities are the values, the mildest first.
var severities = []string{"info", "warning", "error"}

// String, Set and Type implement pflag.Value.
func (s *severity) String() string { return string(*s) }

// Set takes a value, in istioctl's spelling as well: "Warning".
func (s *severity) Set(text string) error {
	if text = strings.ToLower(text); !slices.Contains(severities, text) {
		return fmt.Errorf("must be one of %s%s", strings.Join(severities, ", "), nearest.Hint(text, severities))
	}
	*s = severity(text)
	return nil
}

// Type is shown in the help.
func (s *severity) Type() string { return strings.Join(severities, "|") }

func newAnalyze(env Env) *cobra.Command {
	f := analyzeFlags{out: newFormat("table", "log", "json", "yaml", "sarif"), threshold: "error", show: "info"}
	cmd := &cobra.Command{
		Use:   "analyze [FILE|DIR|-]... [--kube]",
		Short: "Look for mistakes in a whole mesh, of files or of an API server",
		Long: `Look for mistakes in a whole mesh: objects that are refused, as by ` + "`fairlead validate`" +
			`, and what only shows between objects, such as a host, subset,
gateway or Secret that does not exist, objects that conflict, and Pods without a sidecar. docs/reference/findings.md lists what is looked for.

The mesh is that of files, with --kube that of an API server, or both: then an object of a file takes the place of the API server's. Without files it
is that of the API server which the kubeconfig names. With files alone nothing but a Gateway or subset is said to be missing whose kind is not in the
files at all. With --kube, the messages of one namespace are printed, that of the context or of -n, beside those about files; -A prints all. A kind
that may not be read is named, and what needs it is not looked for.

A message is suppressed by -S, and by the annotation galley.istio.io/analyze-suppress of its object: a list of codes, Istio's or Fairlead's, or *.

Exit codes, as of istioctl analyze: 0 nothing as bad as --failure-threshold, 65 a text is no object, 79 something is; and 1 and 2 as of every command.`,
		Example: `  fairlead analyze mesh/
  fairlead analyze -A
  fairlead analyze --kube change.yaml -n shop
  fairlead analyze mesh/ -o sarif > analysis.sarif
  fairlead analyze --kube -S "IST0103=Pod *.testing"`,
		Args: args(cobra.ArbitraryArgs),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, named []string) error {
			f.files = append(f.files, named...)
			if said := cmd.Flags().Changed("kube") || cmd.Flags().Changed("use-kube"); !said && !f.list && len(f.files) == 0 {
				_, err := kube.Config{Kubeconfig: f.kubeconfig, Context: f.context}.Rest()
				f.kube = err == nil
			}
			return analyze(cmd.Context(), env, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	filesFlag(fs, &f.files, "file, directory, or - for standard input, also without a flag")
	fs.BoolVarP(&f.kube, "kube", "k", false, "read the API server too")
	fs.BoolVar(&f.kube, "use-kube", false, "istioctl's name of --kube")
	fs.StringVarP(&f.kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl")
	fs.StringVar(&f.context, "context", "", "context of the kubeconfig file")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace whose messages are printed, and of objects in files that name none")
	fs.BoolVarP(&f.all, "all-namespaces", "A", false, "print the messages of all namespaces")
	fs.Var(&f.threshold, "failure-threshold", "severity from which on the exit code is 79")
	fs.Var(&f.show, "output-threshold", "severity from which on messages are printed")
	fs.StringVar(&f.mesh, "mesh-config-file", "", "file with the mesh configuration, in place of the ConfigMap's")
	fs.StringVar(&f.mesh, "meshConfigFile", "", "istioctl's name of --mesh-config-file")
	fs.StringArrayVarP(&f.suppress, "suppress", "S", nil,
		"`CODE=KIND NAME.NAMESPACE` whose messages are left out; * stands for any text; may be repeated")
	fs.BoolVar(&f.ignore, "ignore-unknown", false, "do not fail for text that is no object")
	fs.BoolVarP(&f.recursive, "recursive", "R", true, "read the subdirectories of directories; nothing else is possible")
	fs.BoolVarP(&f.list, "list-analyzers", "L", false, "list what is looked for, and do nothing else")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to read the API server at most")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	for _, istios := range []string{"use-kube", "meshConfigFile"} {
		cobra.CheckErr(fs.MarkHidden(istios))
	}
	outputFlag(cmd, f.out)
	completeFlag(cmd, "failure-threshold", severities...)
	completeFlag(cmd, "output-threshold", severities...)
	return cmd
}

// analyze runs `config-watcher analyze`: the rules are config-watcher's.
func analyze(ctx context.Context, env Env, f analyzeFlags, out, diagnostics io.Writer) error {
	switch {
	case !f.list && len(f.files) == 0 && !f.kube:
		return usage(errors.New("name files or directories of objects, - for standard input, or --kube for the objects of an API server"))
	case !f.recursive:
		return usage(errors.New("--recursive=false: directories are read with their subdirectories; name the files instead"))
	}
	watcher, err := programs.Finder{Executable: env.Executable, BinDir: f.binDir, Getenv: env.Getenv}.Program("config-watcher")
	if err != nil {
		return err
	}
	a := []string{"analyze", "--failure-threshold=" + string(f.threshold), "--output-threshold=" + string(f.show),
		"--timeout=" + f.timeout.String()}
	for _, set := range []struct{ flag, value string }{
		{"output", f.out.value}, {"kubeconfig", f.kubeconfig}, {"context", f.context}, {"namespace", f.namespace}, {"mesh-config-file", f.mesh},
	} {
		if set.value != "" {
			a = append(a, "--"+set.flag+"="+set.value)
		}
	}
	for _, set := range []struct {
		flag string
		on   bool
	}{{"kube", f.kube}, {"all-namespaces", f.all}, {"ignore-unknown", f.ignore}, {"list-analyzers", f.list}} {
		if set.on {
			a = append(a, "--"+set.flag)
		}
	}
	for _, s := range f.suppress {
		a = append(a, "--suppress="+s)
	}
	cmd := exec.CommandContext(ctx, watcher, append(append(a, "--"), f.files...)...) //nolint:gosec // our own program
	cmd.Env = append(programs.BaseEnv(env.Getenv), kubernetesEnv(env.Getenv)...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = env.In, out, &said
	err = cmd.Run()
	// The last line of a failure is the error, which is printed as fairlead's own.
	lines := strings.Split(strings.TrimRight(said.String(), "\n"), "\n")
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.ExitCode() > 0 {
		last := strings.TrimPrefix(lines[len(lines)-1], "config-watcher: ")
		tell(diagnostics, lines[:len(lines)-1])
		return process.WithExitCode(errors.New(last), exited.ExitCode())
	}
	tell(diagnostics, lines)
	if err != nil {
		return fmt.Errorf("%s: %w", watcher, err)
	}
	return nil
}

func tell(out io.Writer, lines []string) {
	for _, line := range lines {
		if line != "" {
			fmt.Fprintln(out, line)
		}
	}
}

// kubernetesEnv are the variables by which client-go finds the API server, and programs that a kubeconfig may run.
func kubernetesEnv(getenv func(string) string) []string {
	var out []string
	for _, name := range []string{"KUBECONFIG", "HTTPS_PROXY", "NO_PROXY", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		if v := getenv(name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}
