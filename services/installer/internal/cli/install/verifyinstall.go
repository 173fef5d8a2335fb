package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/structured"
)

// verified is what verify-install says of one revision.
type verified struct {
	Revision string `json:"revision"`
	// Name is that of gateways that are an installation of their own.
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace"`
	State     string `json:"state"`
	Profile   string `json:"profile,omitempty"`
	Version   string `json:"version,omitempty"`
	Objects   int    `json:"objects"`
	// Problems of objects, and of the installation as a whole.
	Problems []plannedProblem `json:"problems"`
}

type plannedProblem struct {
	Object  string `json:"object,omitempty"`
	Problem string `json:"problem"`
}

// verifyFlags are the flags of `fairlead verify-install`.
type verifyFlags struct {
	installflags.Inputs
	kubeflags.Cluster
	out *output.Format
}

func newVerifyInstall(env command.Env) *cobra.Command {
	f := verifyFlags{out: output.New("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "verify-install [--revision REVISION] [-f FILE]",
		Short: "Check that what was installed is there and ready",
		Long: `Check each object of the inventory: that it is there, that nobody else has taken it over, and that workloads are ready. Without --revision, all installed
revisions are checked.

With -f or --set, the objects that the IstioOperator makes are checked instead, however they came into the cluster: that each is there, has the fields that
the IstioOperator gives it, and is ready; and that the installation of its revision has no others.

The exit code is 1 if anything is wrong. ` + "`fairlead diff`" + ` compares the objects field by field.`,
		Example: `  fairlead verify-install
  fairlead verify-install --revision canary -o json
  fairlead verify-install -f mesh.yaml`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := f.verify(cmd, env)
			if err != nil {
				return interrupted(cmd.Context(), err)
			}
			if err := printVerified(cmd, f.out.Value, all); err != nil {
				return err
			}
			wrong := 0
			for _, v := range all {
				wrong += len(v.Problems)
			}
			if wrong > 0 {
				return fmt.Errorf("%d problems", wrong)
			}
			return nil
		},
	}
	f.Inputs.Add(cmd)
	f.Cluster.Add(cmd)
	fs := cmd.Flags()
	fs.Lookup("filename").Usage = "file with the IstioOperator that is compared with the cluster, or - for standard input; may be repeated, " +
		"or a list with commas"
	fs.Lookup("set").Usage = "a setting of that IstioOperator's spec, path=value; may be repeated"
	fs.Lookup("revision").Usage = "revision to check (default: all)"
	completeRevisions(cmd, &f.Cluster)
	output.Flag(cmd, f.out)
	return cmd
}

// verify checks inventories, or what an IstioOperator makes.
func (f *verifyFlags) verify(cmd *cobra.Command, env command.Env) ([]verified, error) {
	ofFiles := len(f.Files) > 0 || len(f.Set) > 0
	if !ofFiles && (f.Manifests != "" || f.Force) {
		return nil, process.Usage(errors.New("--manifests and --force have no effect without -f FILE or --set"))
	}
	if ofFiles {
		return f.verifyFiles(cmd, env)
	}
	c, err := f.Connect()
	if err != nil {
		return nil, err
	}
	records, err := installed(cmd, &f.Cluster, c)
	if err != nil {
		return nil, err
	}
	if f.Revision != "" {
		if records, err = ofRevision(records, f.Revision); err != nil {
			return nil, err
		}
	}
	if len(records) == 0 {
		if releases := helmReleases(cmd.Context(), c); len(releases) > 0 {
			return nil, fmt.Errorf("no inventory of an installation is in the cluster, whose mesh is of the Helm releases %s: helm status tells "+
				"of each, and verify-install -f FILE compares the cluster with an IstioOperator", strings.Join(releases, ", "))
		}
		return nil, fmt.Errorf("nothing is installed: no inventory of an installation is in the cluster; run fairlead install")
	}
	var all []verified
	for _, rec := range records {
		findings, err := apply.Verify(cmd.Context(), c, rec)
		if err != nil {
			return nil, err
		}
		v := verified{Revision: rec.Revision, Name: rec.Name, Namespace: rec.Namespace, State: string(rec.State), Profile: rec.Profile,
			Version: rec.Version, Objects: len(rec.Objects), Problems: []plannedProblem{}}
		switch rec.State {
		case inventory.Applying:
			v.Problems = append(v.Problems, plannedProblem{Problem: cutShort(rec)})
		case inventory.Removing:
			v.Problems = append(v.Problems, plannedProblem{Problem: "an uninstall was cut short, or is running: run fairlead uninstall again"})
		}
		v.add(findings)
		all = append(all, v)
	}
	return all, nil
}

// cutShort says what is done about an installation that was not completed.
func cutShort(rec *inventory.Record) string {
	text := "an installation was cut short, or is running: run fairlead install again with the same file and settings"
	if slices.ContainsFunc(rec.Earlier(), func(past inventory.Installation) bool { return !past.Failed }) {
		text += ", or go back with fairlead rollback --revision " + rec.Revision
	}
	return text
}

// helmReleases names the Helm releases that Deployments of a mesh are of, NAMESPACE/NAME; none if they cannot be
// listed.
func helmReleases(ctx context.Context, c *cluster.Client) (names []string) {
	list, _ := c.List(ctx, cluster.ID{Group: "apps", Version: "v1", Kind: "Deployment"},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=fairlead"})
	for _, d := range list {
		annotations := d.GetAnnotations()
		if release := annotations["meta.helm.sh/release-name"]; release != "" {
			names = append(names, cmp.Or(annotations["meta.helm.sh/release-namespace"], d.GetNamespace())+"/"+release)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// verifyFiles compares what an IstioOperator makes with the cluster, by dry runs.
func (f *verifyFlags) verifyFiles(cmd *cobra.Command, env command.Env) ([]verified, error) {
	req, err := f.Request(cmd, env, &f.Cluster)
	if err != nil {
		return nil, err
	}
	c, err := f.Connect()
	if err != nil {
		return nil, err
	}
	plan, err := apply.NewComparison(cmd.Context(), c, req, f.Force)
	if err != nil {
		return nil, err
	}
	output.Warn(cmd.ErrOrStderr(), plan.Notes)
	v := verified{Revision: req.Revision, Name: plan.Record.Name, Namespace: req.Namespace, State: string(plan.Record.State),
		Profile: req.Profile, Version: plan.Record.Version, Objects: len(plan.Changes), Problems: []plannedProblem{}}
	v.add(apply.VerifyPlan(cmd.Context(), c, plan))
	return []verified{v}, cmd.Context().Err()
}

func (v *verified) add(findings []apply.Finding) {
	for _, finding := range findings {
		v.Problems = append(v.Problems, plannedProblem{finding.String(), finding.Problem})
	}
}

func printVerified(cmd *cobra.Command, as string, all []verified) error {
	w := cmd.OutOrStdout()
	if as != "" {
		return structured.Print(w, as, all)
	}
	for _, v := range all {
		for _, p := range v.Problems {
			text := p.Problem
			if p.Object != "" {
				text = p.Object + ": " + text
			}
			if _, err := fmt.Fprintln(w, text); err != nil {
				return err
			}
		}
		if len(v.Problems) > 0 {
			continue
		}
		verb := "are there and ready"
		if v.State == string(inventory.Removed) {
			verb = "are left of an uninstall"
		}
		title := inventory.Title(v.Revision, v.Name)
		if _, err := fmt.Fprintf(w, "%s in namespace %s: %d objects %s\n", title, v.Namespace, v.Objects, verb); err != nil {
			return err
		}
	}
	return nil
}
