package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/config-watcher/internal/analysis/apiserver"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/report"
	"fairlead.dev/services/config-watcher/internal/analysis/whole"
)

// Exit codes of istioctl analyze, which scripts look at.
const (
	exitUnreadable = 65 // a text is no object, and nothing is as bad as the threshold
	exitFound      = 79 // something is as bad as the threshold
)

// analyzeFlags are the flags of `config-watcher analyze`.
type analyzeFlags struct {
	kube, all, list, ignore, tenants  bool
	kubeconfig, context, namespace    string
	output, threshold, show, meshFile string
	suppress                          []string
	timeout                           time.Duration
}

// newAnalyze is `config-watcher analyze`, which `fairlead analyze` runs; that command describes the flags.
func newAnalyze() *cobra.Command {
	var f analyzeFlags
	cmd := &cobra.Command{
		Use:   "analyze [FILE|DIR|-]... [--kube]",
		Short: "Look for mistakes in a whole mesh, of files or of an API server",
		Long: "analyze judges the objects of files, of an API server, or of both, alone and together, and prints what is wrong with them.\n" +
			"`fairlead analyze --help` describes its flags.\n\n" +
			"Exit codes: 0 nothing found as bad as --failure-threshold, 1 failed, 2 wrong usage or a path that cannot be read, 65 a text that is\n" +
			"no object, 79 something found as bad as the threshold.",
		Args: service.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, paths []string) error {
			err := f.check(paths)
			if err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			return f.run(cmd.Context(), paths, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *analyzeFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.kube, "kube", false, "read the API server as well")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file")
	fs.StringVar(&f.context, "context", "", "context of the kubeconfig file")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace")
	fs.BoolVarP(&f.all, "all-namespaces", "A", false, "tell of all namespaces")
	fs.StringVarP(&f.output, "output", "o", "table", "output format: "+strings.Join(report.Formats, ", "))
	fs.StringVar(&f.threshold, "failure-threshold", "error", "severity from which on the exit code is 79")
	fs.StringVar(&f.show, "output-threshold", "info", "severity from which on messages are printed")
	fs.StringVar(&f.meshFile, "mesh-config-file", "", "file with the mesh configuration")
	fs.BoolVar(&f.tenants, "multi-tenant", false, "the mesh has tenants, whatever the config-watcher among the objects says")
	fs.StringArrayVarP(&f.suppress, "suppress", "S", nil, "CODE=KIND NAME.NAMESPACE whose messages are left out")
	fs.BoolVar(&f.ignore, "ignore-unknown", false, "do not fail for text that is no object")
	fs.BoolVarP(&f.list, "list-analyzers", "L", false, "list what is looked for")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to read the API server at most")
}

// check checks the flags.
func (f *analyzeFlags) check(paths []string) error {
	f.threshold, f.show = strings.ToLower(f.threshold), strings.ToLower(f.show)
	levels := []string{string(finding.Info), string(finding.Warning), string(finding.Error)}
	of := func(flag, value string, allowed []string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return fmt.Errorf("--%s %q is none of %s%s", flag, value, strings.Join(allowed, ", "), nearest.Hint(value, allowed))
	}
	err := errors.Join(of("output", f.output, report.Formats), of("failure-threshold", f.threshold, levels),
		of("output-threshold", f.show, levels))
	switch {
	case err != nil:
	case f.list:
	case len(paths) == 0 && !f.kube:
		err = errors.New("name files or directories of objects, - for the standard input, or --kube for the objects of an API server")
	case f.all && f.namespace != "" && len(paths) == 0:
		err = errors.New("--all-namespaces and --namespace exclude each other: leave one out")
	case !f.kube && f.kubeconfig+f.context != "":
		err = errors.New("--kubeconfig and --context are about an API server: add --kube")
	case f.timeout <= 0:
		err = errors.New("--timeout must be positive, such as 30s")
	}
	return err
}

func (f *analyzeFlags) run(ctx context.Context, paths []string, in io.Reader, stdout, stderr io.Writer) error {
	if f.list {
		return listCodes(stdout)
	}
	var suppress []whole.Suppression
	for _, text := range f.suppress {
		s, err := whole.ParseSuppression(text)
		if err != nil {
			return process.WithExitCode(fmt.Errorf("--suppress: %w", err), process.ExitUsage)
		}
		suppress = append(suppress, s)
	}
	mesh := whole.New(whole.Config{Namespace: f.namespace, Partial: !f.kube, MultiTenant: f.tenants, Now: time.Now()})
	if f.meshFile != "" {
		if err := mesh.SettingsOf(f.meshFile); err != nil {
			return process.WithExitCode(fmt.Errorf("--mesh-config-file: %w", err), process.ExitUsage)
		}
	}
	if err := mesh.ReadFiles(paths, in); err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	shown := f.namespace
	if f.kube {
		namespace, err := f.readCluster(ctx, mesh, stderr)
		if err != nil {
			return err
		}
		if shown == "" {
			shown = namespace
		}
	}
	if f.all || !f.kube && f.namespace == "" {
		shown = ""
	}
	result, err := mesh.Analyze(ctx, suppress)
	if err != nil {
		return err
	}
	return f.print(result, shown, mesh, stdout, stderr)
}

// readCluster loads the objects of the API server, names what cannot be read, and returns the namespace of the context.
func (f *analyzeFlags) readCluster(ctx context.Context, mesh *whole.Mesh, stderr io.Writer) (string, error) {
	reader, namespace, err := apiserver.New(apiserver.Config{Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	unread, err := reader.Load(ctx, mesh)
	if err != nil {
		return "", err
	}
	var kinds []string
	for _, u := range unread {
		fmt.Fprintf(stderr, "not read: %s\n", u)
		kinds = append(kinds, u.Kind)
	}
	mesh.SetUnreadable(kinds)
	if f.namespace != "" && !slices.Contains(kinds, "Namespace") && mesh.Empty(f.namespace) {
		return "", fmt.Errorf("namespace %q: no object is in it, and no Namespace is called so; see `kubectl get namespaces`", f.namespace)
	}
	return namespace, nil
}

// print prints the messages of a namespace, of cluster-scoped objects and of files; "" stands for all namespaces.
func (f *analyzeFlags) print(result whole.Result, namespace string, mesh *whole.Mesh, stdout, stderr io.Writer) error {
	var printed []finding.Finding
	unreadable, found := 0, 0
	for _, m := range result.Messages {
		if m.Code == finding.TextUnreadable {
			if unreadable++; f.ignore {
				continue
			}
		}
		about := namespace == "" || m.Key.Namespace == "" && m.Key.Name != namespace && m.Key.Kind != "Namespace" ||
			m.Key.Namespace == namespace ||
			m.Key.Kind == "Namespace" && m.Key.Name == namespace || f.namespace == "" && m.FromFile
		if !about {
			continue
		}
		if m.Code != finding.TextUnreadable && m.Severity.AtLeast(finding.Severity(f.threshold)) {
			found++
		}
		if m.Severity.AtLeast(finding.Severity(f.show)) {
			printed = append(printed, m)
		}
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(report.Print(out, f.output, printed), out.Flush()); err != nil {
		return err
	}
	fmt.Fprintln(stderr, summary(result, len(printed), mesh))
	switch {
	case found > 0:
		return process.WithExitCode(fmt.Errorf("%d found of severity %s or worse", found, f.threshold), exitFound)
	case unreadable > 0 && !f.ignore:
		return process.WithExitCode(fmt.Errorf("texts that are no objects: %d", unreadable), exitUnreadable)
	}
	return nil
}

// summary says on one line what was looked at.
func summary(result whole.Result, printed int, mesh *whole.Mesh) string {
	out := fmt.Sprintf("objects analyzed: %d, messages: %d", mesh.Objects(), printed)
	if result.Suppressed > 0 {
		out += fmt.Sprintf(", %d suppressed", result.Suppressed)
	}
	if ignored := mesh.Ignored(); len(ignored) > 0 {
		out += ", kinds that are not looked at: " + strings.Join(slices.Sorted(maps.Keys(ignored)), ", ")
	}
	if len(result.Skipped) > 0 {
		var codes []string
		for _, c := range result.Skipped {
			codes = append(codes, string(c))
		}
		out += "; not looked for, because what they are about may be elsewhere: " + strings.Join(codes, ", ")
	}
	return out
}

func listCodes(out io.Writer) error {
	for _, d := range finding.Descriptions() {
		istio := d.Istio
		if istio == "" {
			istio = "-"
		}
		if _, err := fmt.Fprintf(out, "%-28s %-8s %-8s %s\n", d.Code, istio, d.Severity, strings.ReplaceAll(d.About, "`", "")); err != nil {
			return err
		}
	}
	return nil
}
