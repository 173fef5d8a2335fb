package install

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/operator"
	"fairlead.dev/services/installer/internal/operator/deployment"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/tag"
)

func newOperator(env command.Env) *cobra.Command {
	cmd := service.Command(&cobra.Command{
		Use:   "operator",
		Short: "Reconcile the IstioOperators of a cluster, or install what does",
		Long: `Watch the IstioOperator resources of a cluster, install what each asks for, as ` + "`fairlead install -f`" +
			` does, and keep it so: what others change or delete is
made again. This is the program of the image operator; ` + "`fairlead operator init`" +
			` runs it in a cluster. Of several replicas one works, by a lease.

The resource's status says what has become of it. The annotation install.istio.io/ignoreReconcile: "true" has a resource left alone; its deletion uninstalls the
revision, as ` + "`fairlead uninstall --revision`" + ` does.`,
	}, &operator.Options{}, operator.Open)
	cmd.Version = "" // that of fairlead is enough
	cmd.Args = nil   // as of every command with sub-commands
	cmd.AddCommand(newOperatorInit(env), newOperatorDump(), newOperatorRemove(env))
	return cmd
}

// operatorFlags are the flags that say what the operator is, in istioctl's names.
type operatorFlags struct {
	deployment.Settings
	manifests string
}

// addSettings adds the flags.
func (f *operatorFlags) addSettings(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.Hub, "hub", "", "registry of the operator's image, instead of the install package's")
	fs.StringVarP(&f.Tag, "tag", "t", "", "tag of the operator's image, instead of the install package's")
	fs.StringSliceVar(&f.ImagePullSecrets, "imagePullSecrets", nil,
		"Secrets of the operator's namespace by which its image is pulled, with commas between them")
	fs.StringSliceVar(&f.Watched, "watchedNamespaces", []string{kubeflags.DefaultIstioNamespace},
		`namespaces whose IstioOperators are reconciled, with commas between them; "" for all`)
	fs.StringVarP(&f.manifests, "manifests", "d", "", "install package that has the chart operator, instead of Fairlead's own")
	_ = cmd.MarkFlagDirname("manifests")
	f.name(cmd)
}

// name adds the flags that name an operator.
func (f *operatorFlags) name(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.Namespace, "operatorNamespace", operator.DefaultNamespace, "namespace of the operator")
	fs.StringVarP(&f.Revision, "revision", "r", "", "operator of one revision: it reconciles the IstioOperators of that revision alone")
}

func newOperatorDump() *cobra.Command {
	var f operatorFlags
	out := output.New("yaml", "json")
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the objects of the operator",
		Long:  `Print the objects that ` + "`fairlead operator init`" + ` with the same flags applies. No cluster is asked.`,
		Args:  command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkg, err := installflags.OpenPackage(f.manifests)
			if err != nil {
				return err
			}
			objects, err := f.Objects(pkg)
			if err != nil {
				return process.Refused(err)
			}
			if out.Value == "json" {
				list := []any{}
				for _, o := range objects {
					list = append(list, o.Tree)
				}
				return structured.Print(cmd.OutOrStdout(), out.Value, list)
			}
			text, err := order.Text(objects)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f.addSettings(cmd)
	output.Flag(cmd, out)
	return cmd
}

// operatorInit are the flags of `fairlead operator init`.
type operatorInit struct {
	operatorFlags
	kubeflags.Cluster
	changeFlags
	files []string
	force bool
}

func newOperatorInit(env command.Env) *cobra.Command {
	var f operatorInit
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Install the operator in a cluster, or change it",
		Long: `Install the operator in a cluster, or change the one that is there, and wait until it runs. With -f the IstioOperator of the file is applied afterwards, which the
operator then installs.

A revision that the command line has installed is taken over by the operator when an IstioOperator asks for it. If that asks for the same, nothing else is changed,
and no Pod is started again.`,
		Example: `  fairlead operator init
  fairlead operator init --watchedNamespaces istio-system,team-a -f mesh.yaml
  fairlead operator init --hub registry.example.com/fairlead --tag 1.2.0 --dry-run`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.addSettings(cmd)
	f.Add(cmd)
	f.addChanges(cmd)
	fs := cmd.Flags()
	fs.Lookup("skip-confirmation").Usage = "has no effect: nothing is asked"
	fs.Lookup("wait").Usage = "wait until the operator runs"
	fileflag.Add(fs, &f.files, "file with an IstioOperator to apply, or - for standard input")
	fs.BoolVar(&f.force, "force", false, "take over fields that others manage")
	return cmd
}

func (f *operatorInit) run(cmd *cobra.Command, env command.Env) error {
	pkg, err := installflags.OpenPackage(f.manifests)
	if err != nil {
		return err
	}
	objects, err := f.Objects(pkg)
	if err != nil {
		return process.Refused(err)
	}
	var resources []*unstructured.Unstructured
	for _, name := range f.files {
		text, err := installflags.ReadOperator(name, env.In)
		if err != nil {
			return process.Usage(err)
		}
		u, err := f.resource(name, text)
		if err != nil {
			return process.Refused(err)
		}
		if _, err := install.Spec(install.Inputs{Inputs: merge.Inputs{Files: []merge.File{{Name: name, Text: text}}}, Package: pkg}); err != nil {
			return process.Refusedf("%w\nNothing was changed", err)
		}
		resources = append(resources, u)
	}
	c, err := f.Connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	plan, err := f.Plan(ctx, c, objects)
	if err != nil {
		return interrupted(ctx, err)
	}
	list := []plannedObject{}
	for _, ch := range plan {
		list = append(list, plannedObject{Object: ch.String(), Action: ch.Action})
	}
	for _, u := range resources {
		list = append(list, plannedObject{Object: cluster.Of(u).String(), Action: "apply"})
	}
	if f.dryRun {
		return printActions(cmd.OutOrStdout(), f.out.Value, list)
	}
	if err := deployment.Install(ctx, c, plan, f.force); err != nil {
		return again(takeOver(interrupted(ctx, err)))
	}
	if f.wait {
		tell := func(text string) { installProgress(env, cmd.ErrOrStderr()).Step("operator", 0, 1, text) }
		if err := f.Await(ctx, c, f.waiting, tell); err != nil {
			return again(interrupted(ctx, err))
		}
	}
	for _, u := range resources {
		if _, err := c.Apply(ctx, u, cluster.ApplyOptions{Force: f.force}); err != nil {
			return again(takeOver(interrupted(ctx, err)))
		}
	}
	if f.out.Value != "" {
		return printActions(cmd.OutOrStdout(), f.out.Value, list)
	}
	where := "all namespaces"
	if len(f.Watched) > 0 {
		where = strings.Join(f.Watched, ", ")
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "the operator is installed in namespace %s; it reconciles the IstioOperators of %s\n", f.Namespace,
		where)
	return err
}

// resource reads the IstioOperator of a file. Without a namespace it goes where the operator looks first, and without a
// name it has that of its revision.
func (f *operatorInit) resource(name string, text []byte) (*unstructured.Unstructured, error) {
	doc, err := tree.ParseStrictMap(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if doc["apiVersion"] != operator.Resource.GroupVersion().String() || doc["kind"] != "IstioOperator" {
		return nil, fmt.Errorf("%s: it is no IstioOperator of %s; a bare spec is for fairlead install -f: give it apiVersion, kind, "+
			"metadata.name and spec", name, operator.Resource.GroupVersion())
	}
	u, err := cluster.Object(&manifest.Object{Tree: doc})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if u.GetName() == "" {
		revision, _, _ := unstructured.NestedString(u.Object, "spec", "revision")
		u.SetName(cmp.Or(revision, tag.Default))
	}
	if u.GetNamespace() == "" {
		u.SetNamespace(append(slices.Clone(f.Watched), f.IstioNamespace)[0])
	}
	if len(f.Watched) > 0 && !slices.Contains(f.Watched, u.GetNamespace()) {
		return nil, fmt.Errorf("%s: metadata.namespace is %s, which the operator would not watch: add it to --watchedNamespaces", name,
			u.GetNamespace())
	}
	delete(u.Object, "status")
	return u, nil
}

// takeOver names the flag that takes over what others manage.
func takeOver(err error) error {
	if conflict := (*cluster.Conflict)(nil); errors.As(err, &conflict) {
		return fmt.Errorf("%w\nTake the fields over with --force", err)
	}
	return err
}

func printActions(out io.Writer, as string, list []plannedObject) error {
	if as != "" {
		return structured.Print(out, as, list)
	}
	for _, o := range list {
		if _, err := fmt.Fprintf(out, "%s %s\n", o.Action, o.Object); err != nil {
			return err
		}
	}
	return nil
}

// operatorRemove are the flags of `fairlead operator remove`.
type operatorRemove struct {
	operatorFlags
	kubeflags.Cluster
	changeFlags
	purge bool
}

func newOperatorRemove(env command.Env) *cobra.Command {
	var f operatorRemove
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove the operator from a cluster; what it has installed stays",
		Long: `Remove the operator from a cluster. What it has installed stays, and so do the IstioOperators and their definition: another operator goes on with them, and the
commands of the command line work with what is installed.

An IstioOperator that an operator has installed is not gone after its deletion before an operator has uninstalled it. To have it go and the mesh stay, annotate it
with install.istio.io/ignoreReconcile=true and delete it while the operator still runs.`,
		Example: `  fairlead operator remove
  fairlead operator remove --revision canary
  fairlead operator remove --purge -y`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.name(cmd)
	f.Add(cmd)
	f.addChanges(cmd)
	cmd.Flags().Lookup("wait").Usage = "wait until it is gone"
	cmd.Flags().BoolVar(&f.purge, "purge", false, "remove all operators of the cluster")
	return cmd
}

func (f *operatorRemove) run(cmd *cobra.Command, env command.Env) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	which := []deployment.Settings{f.Settings}
	if f.purge {
		if which, err = deployment.Installed(ctx, c); err != nil {
			return interrupted(ctx, err)
		}
	}
	var ids []cluster.ID
	list := []plannedObject{}
	for _, s := range which {
		found, err := s.Removal(ctx, c)
		if err != nil {
			return interrupted(ctx, err)
		}
		ids = append(ids, found...)
	}
	for _, id := range ids {
		list = append(list, plannedObject{Object: id.String(), Action: "delete"})
	}
	if len(ids) == 0 {
		return fmt.Errorf("no operator %s is in namespace %s; --operatorNamespace and --revision name another, --purge removes all", f.Name(),
			f.Namespace)
	}
	left, err := deployment.Left(ctx, c)
	if err != nil {
		return interrupted(ctx, err)
	}
	for _, id := range left {
		output.Warn(cmd.ErrOrStderr(), []string{
			fmt.Sprintf("%s stays, with what it has installed; it can be deleted only while an operator runs, or without its finalizer %s", id,
				operator.Finalizer)})
	}
	if f.dryRun {
		return printActions(cmd.OutOrStdout(), f.out.Value, list)
	}
	if !f.yes {
		if err := printActions(cmd.ErrOrStderr(), "", list); err != nil {
			return err
		}
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), "Proceed?", "--skip-confirmation"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	patience := f.waiting
	if !f.wait {
		patience = 0
	}
	tell := func(text string) { installProgress(env, cmd.ErrOrStderr()).Step("operator", 0, len(ids), text) }
	if err := deployment.Remove(ctx, c, ids, patience, tell); err != nil {
		return again(interrupted(ctx, err))
	}
	if f.out.Value != "" {
		return printActions(cmd.OutOrStdout(), f.out.Value, list)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "the operator is removed; what it has installed stays")
	return err
}
