package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/values"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/precheck"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/tag"
)

// precheckFlags are the flags of `fairlead precheck`.
type precheckFlags struct {
	installflags.Inputs
	kubeflags.Cluster
	namespace, since, binDir string
	skipControlPlane         bool
	show                     analysis.Severity
	timeout                  time.Duration
	out                      *output.Format
}

func newPrecheck(env command.Env) *cobra.Command {
	f := precheckFlags{out: output.New("log", "json", "yaml"), show: "warning"}
	cmd := &cobra.Command{
		Use:   "precheck [--filename FILE] [--set path=value]",
		Short: "Look for what hinders an installation or an upgrade, and change nothing",
		Long: `Look in a cluster for what hinders an installation or an upgrade; nothing is changed.

Looked for are: the version of Kubernetes; the rights to write each object of the installation; definitions with versions that would go, and kinds that
nothing reads any more; webhooks that nothing serves, and that inject for the same revision; control planes that are there; with --from-version the
defaults that changed; what fairlead install would refuse, or make anew; and everything that fairlead analyze --kube looks for.

Exit codes: 0 nothing of level error was found but in the analysis of the mesh's objects, which hinders no installation, 1
something was or the API server does not answer, and 2 and 3 as of every command.`,
		Example: `  fairlead precheck
  fairlead precheck --filename mesh.yaml --revision 1-32-0
  fairlead precheck --from-version 1.28 -o json`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			found, err := f.run(ctx, env)
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), found)
		},
	}
	fs := cmd.Flags()
	// As in istioctl, -f is another flag here.
	fs.Var((*fileflag.List)(&f.Files), "filename", "file with the IstioOperator to install, or - for standard input; may be repeated")
	fs.StringArrayVarP(&f.Set, "set", "s", nil, "a setting of the IstioOperator's spec, path=value; may be repeated")
	f.AddPackage(cmd)
	fs.StringVarP(&f.Revision, "revision", "r", "", "revision of the control plane to install")
	fs.StringVarP(&f.since, "from-version", "f", "", "version that runs now, 1.28: say what changed since")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace whose own objects are analyzed, instead of all")
	fs.BoolVar(&f.skipControlPlane, "skip-controlplane", false, "only analyze the mesh's objects")
	fs.Var(&f.show, "output-threshold", "severity from which on findings are printed")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long it may take")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	f.Cluster.Add(cmd)
	output.Flag(cmd, f.out)
	complete.Flag(cmd, "output-threshold", analysis.Severities...)
	kubeflags.CompleteNamespaces(cmd, &f.Cluster, "namespace")
	_ = cmd.RegisterFlagCompletionFunc("revision", f.Complete(tag.Revisions))
	return cmd
}

// run finds everything.
func (f *precheckFlags) run(ctx context.Context, env command.Env) ([]precheck.Finding, error) {
	var found []precheck.Finding
	if !f.skipControlPlane {
		cfg, req, err := f.config(env)
		if err != nil {
			return nil, err
		}
		if found, err = precheck.Run(ctx, cfg); err != nil {
			return nil, kube.Explain(err)
		}
		if !slices.ContainsFunc(found, func(f precheck.Finding) bool { return f.Name == precheck.RightMissing }) {
			refused, err := f.refusals(ctx, req)
			if err != nil {
				return nil, err
			}
			found = append(found, refused...)
		}
	}
	analyzed, err := f.analyze(ctx, env)
	if err != nil {
		return nil, err
	}
	found = append(found, analyzed...)
	precheck.Sort(found)
	return found, nil
}

// refusals asks the API server as an installation would, without effect, and finds why it would be refused, and which
// objects it would make anew.
func (f *precheckFlags) refusals(ctx context.Context, req *apply.Request) (found []precheck.Finding, err error) {
	c, err := f.Connect()
	if err != nil {
		return nil, err
	}
	plan, err := apply.NewPlan(ctx, c, req, false)
	switch {
	case ctx.Err() != nil:
		return nil, interrupted(ctx, err)
	case err != nil:
		return []precheck.Finding{{Name: "InstallationRefused", Level: precheck.Error, Message: "`fairlead install` would refuse this: " +
			strings.TrimPrefix(err.Error(), "nothing was changed: "), Remedy: "mend what it names"}}, nil
	}
	for _, ch := range plan.Anew() {
		found = append(found, precheck.Finding{
			Name: "ObjectMadeAnew", Level: precheck.Warning, Origin: ch.String(), Message: ch.Why(),
			Remedy: "`fairlead install --recreate` deletes it and makes it anew; the guide of upgrades says what that interrupts",
		})
	}
	return found, nil
}

// config says what is to be installed, and where.
func (f *precheckFlags) config(env command.Env) (precheck.Config, *apply.Request, error) {
	var cfg precheck.Config
	in, err := f.Judged(env)
	if err != nil {
		return cfg, nil, err
	}
	if f.IstioNamespace != kubeflags.DefaultIstioNamespace {
		in.Set = append([]string{"values.global.istioNamespace=" + f.IstioNamespace}, in.Set...)
	}
	result, err := install.Generate(in)
	if err != nil {
		return cfg, nil, process.Refused(err)
	}
	req, err := apply.NewRequest(result, in.Package, version.Info().Version)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Objects = result.Objects
	global := values.Global(result.Merged.Spec, &in.Package.Mapping)
	cfg.Namespace, cfg.Revision = values.Namespace(global, &in.Package.Mapping), tree.GetString(global, "revision")
	cfg.RootConfigMap = apply.RootConfigMap(result, global)
	if cfg.Since = f.since; cfg.Since != "" {
		var old bool
		if cfg.Changes, old, err = precheck.Changes(in.Package, cfg.Since); err != nil {
			return cfg, nil, process.Usagef("--from-version: %w", err)
		}
		if old {
			return cfg, nil, process.Usagef(
				"--from-version %s is older than the install package knows the changes of; upgrade to a version between first", cfg.Since)
		}
	}
	rest, err := f.Rest()
	if err != nil {
		return cfg, nil, err
	}
	if cfg.API, err = kube.NewAPI(rest); err != nil {
		return cfg, nil, err
	}
	cfg.Dynamic, err = dynamic.NewForConfig(rest)
	return cfg, req, err
}

// analyze runs `fairlead analyze --kube`.
func (f *precheckFlags) analyze(ctx context.Context, env command.Env) ([]precheck.Finding, error) {
	if f.As != "" || len(f.AsGroups) > 0 {
		return []precheck.Finding{{Name: "NotAnalyzed", Level: precheck.Info,
			Message: "the mesh's objects are not analyzed for an impersonated user",
			Remedy:  "run `fairlead analyze --kube` as a user with the right to read them"}}, nil
	}
	text, err := env.Analysis(f.binDir).JSON(ctx, analysis.Options{
		Kube: true, Namespace: f.namespace, Kubeconfig: f.Kubeconfig, Context: f.Context, Timeout: f.timeout,
	})
	if err != nil && process.ExitCode(err) != analysis.FoundErrors {
		return nil, fmt.Errorf("the analysis of the mesh's objects failed: %w", err)
	}
	var found []precheck.Finding
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("config-watcher analyze answers with what is no JSON: %w; do both programs have one version?", err)
	}
	for i := range found {
		found[i].Mesh = true
	}
	return found, nil
}

func (f *precheckFlags) print(out io.Writer, found []precheck.Finding) error {
	from := slices.Index(analysis.Severities, string(f.show))
	errorsFound, ofMesh := 0, 0
	shown := []precheck.Finding{}
	for _, one := range found {
		switch {
		case one.Level != precheck.Error:
		case one.Mesh && !f.skipControlPlane:
			ofMesh++
		default:
			errorsFound++
		}
		if slices.Index(analysis.Severities, strings.ToLower(one.Level)) >= from {
			shown = append(shown, one)
		}
	}
	if err := f.write(out, shown); err != nil {
		return err
	}
	if ofMesh > 0 && f.out.Value != "json" && f.out.Value != "yaml" {
		fmt.Fprintf(out, "%d errors are of the mesh's objects (fairlead analyze): they do not hinder an installation\n", ofMesh)
	}
	if errorsFound > 0 {
		return fmt.Errorf("%d found that hinder an installation", errorsFound)
	}
	return nil
}

func (f *precheckFlags) write(out io.Writer, shown []precheck.Finding) error {
	if f.out.Value == "json" || f.out.Value == "yaml" {
		return structured.Print(out, f.out.Value, shown)
	}
	var b bytes.Buffer
	for _, one := range shown {
		name := one.Name
		if one.Code != "" {
			name = one.Code + " " + name
		}
		where := ""
		if one.Origin != "" {
			where = " (" + strings.TrimSuffix(one.Origin+" "+one.Field, " ") + ")"
		}
		fmt.Fprintf(&b, "%s [%s]%s %s", one.Level, name, where, one.Message)
		if one.Remedy != "" {
			fmt.Fprintf(&b, "; %s", one.Remedy)
		}
		b.WriteByte('\n')
	}
	if len(shown) == 0 {
		b.WriteString("nothing was found\n")
	}
	_, err := out.Write(b.Bytes())
	return err
}
