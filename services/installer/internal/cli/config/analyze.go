package config

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/kube"
)

// analyzeFlags are the flags of `fairlead analyze`.
type analyzeFlags struct {
	analysis.Options
	recursive       bool
	threshold, show analysis.Severity
	binDir          string
	out             *output.Format
}

func newAnalyze(env command.Env) *cobra.Command {
	f := analyzeFlags{out: output.New("table", "log", "json", "yaml", "sarif"), threshold: "error", show: "info"}
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
		Args:              command.Args(cobra.ArbitraryArgs),
		ValidArgsFunction: complete.Files,
		RunE: func(cmd *cobra.Command, named []string) error {
			f.Files = append(f.Files, named...)
			if said := cmd.Flags().Changed("kube") || cmd.Flags().Changed("use-kube"); !said && !f.List && len(f.Files) == 0 {
				_, err := kube.Config{Kubeconfig: f.Kubeconfig, Context: f.Context}.Rest()
				f.Kube = err == nil
			}
			return f.run(cmd, env)
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &f.Files, "file, directory, or - for standard input, also without a flag")
	fs.BoolVarP(&f.Kube, "kube", "k", false, "read the API server too")
	fs.BoolVar(&f.Kube, "use-kube", false, "istioctl's name of --kube")
	fs.StringVarP(&f.Kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl")
	fs.StringVar(&f.Context, "context", "", "context of the kubeconfig file")
	fs.StringVarP(&f.Namespace, "namespace", "n", "", "namespace whose messages are printed, and of objects in files that name none")
	fs.BoolVarP(&f.All, "all-namespaces", "A", false, "print the messages of all namespaces")
	fs.Var(&f.threshold, "failure-threshold", "severity from which on the exit code is 79")
	fs.Var(&f.show, "output-threshold", "severity from which on messages are printed")
	fs.StringVar(&f.MeshConfigFile, "mesh-config-file", "", "file with the mesh configuration, in place of the ConfigMap's")
	fs.StringVar(&f.MeshConfigFile, "meshConfigFile", "", "istioctl's name of --mesh-config-file")
	fs.BoolVar(&f.MultiTenant, "multi-tenant", false,
		"the mesh has tenants; without the flag, a config-watcher of the control plane among the objects says whether it has")
	fs.StringArrayVarP(&f.Suppress, "suppress", "S", nil,
		"`CODE=KIND NAME.NAMESPACE` whose messages are left out; * stands for any text; may be repeated")
	fs.BoolVar(&f.IgnoreUnknown, "ignore-unknown", false, "do not fail for text that is no object")
	fs.BoolVarP(&f.recursive, "recursive", "R", true, "read the subdirectories of directories; nothing else is possible")
	fs.BoolVarP(&f.List, "list-analyzers", "L", false, "list what is looked for, and do nothing else")
	fs.DurationVar(&f.Timeout, "timeout", 30*time.Second, "how long to read the API server at most")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	for _, istios := range []string{"use-kube", "meshConfigFile"} {
		cobra.CheckErr(fs.MarkHidden(istios))
	}
	output.Flag(cmd, f.out)
	complete.Flag(cmd, "failure-threshold", analysis.Severities...)
	complete.Flag(cmd, "output-threshold", analysis.Severities...)
	return cmd
}

func (f *analyzeFlags) run(cmd *cobra.Command, env command.Env) error {
	switch {
	case !f.List && len(f.Files) == 0 && !f.Kube:
		return process.Usage(errors.New("name files or directories of objects, - for standard input, or --kube for the objects of an API server"))
	case !f.recursive:
		return process.Usage(errors.New("--recursive=false: directories are read with their subdirectories; name the files instead"))
	}
	f.FailureThreshold, f.OutputThreshold, f.Output = string(f.threshold), string(f.show), f.out.Value
	return env.Analysis(f.binDir).Analyze(cmd.Context(), f.Options, cmd.OutOrStdout(), cmd.ErrOrStderr())
}
