package install

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/migrate"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/tag"
)

// migrateFlags are the flags of `fairlead manifest migrate`.
type migrateFlags struct {
	installflags.Inputs
	kubeflags.Cluster
	output   string
	operator string
}

func newManifestMigrate(env command.Env) *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "migrate [-f [CHART=]FILE]...",
		Short: "Turn an installation of Istio into an IstioOperator",
		Long: `Print the IstioOperator that installs what Istio's Helm charts, an older IstioOperator, or a running control plane is installed with.

A file holds an IstioOperator, or the values of one of Istio's charts: base, istiod, cni, ztunnel or gateway. The chart is found by what the values
say; CHART=FILE names it. The components of the result are the charts that there are.

Without a file the cluster is read, and nothing in it is changed: its IstioOperator if it has one, else the ConfigMaps, Deployments, Services and
HorizontalPodAutoscalers of the control plane, and the gateways of all namespaces.

What cannot be migrated is a warning on standard error that names the field. Read them, and compare with fairlead manifest generate before you install.`,
		Example: `  fairlead manifest migrate -f istio.yaml
  fairlead manifest migrate -f base=base.yaml -f istiod=istiod.yaml -f gateway=ingress.yaml > mesh.yaml
  fairlead manifest migrate --context prod --revision 1-31-0 -o mesh.yaml`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkg, err := installflags.OpenPackage(f.Manifests)
			if err != nil {
				return err
			}
			var r *migrate.Result
			if len(f.Files) > 0 {
				r, err = f.fromFiles(pkg, env.In)
			} else {
				r, err = f.fromCluster(cmd.Context(), pkg)
			}
			if err != nil {
				return err
			}
			output.Warn(cmd.ErrOrStderr(), r.Warnings)
			text, err := r.Text()
			if err != nil {
				return err
			}
			return output.Write(cmd.OutOrStdout(), f.output, text)
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &f.Files, "file with an IstioOperator, or CHART=FILE with values of one of Istio's charts, or - for standard input")
	fs.StringArrayVarP(&f.Set, "set", "s", nil, "a setting of the IstioOperator of the files, path=value; may be repeated")
	f.AddPackage(cmd)
	fs.StringVarP(&f.Revision, "revision", "r", "", "revision of the control plane in the cluster")
	fs.StringVar(&f.operator, "operator", "", "name of the IstioOperator in the cluster, of several")
	fs.StringVarP(&f.output, "output", "o", "", "file to write, instead of standard output")
	f.Cluster.Add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("revision", f.Complete(tag.Revisions))
	return cmd
}

// fromFiles migrates files: either IstioOperators, or values of charts.
func (f *migrateFlags) fromFiles(pkg *profile.Package, in io.Reader) (*migrate.Result, error) {
	var operators []merge.File
	var charts []migrate.Values
	for _, name := range f.Files {
		chart, file, named := strings.Cut(name, "=")
		if _, err := os.Stat(name); err == nil || !named { // a file's own name may hold an =
			file, named = name, false
		}
		text, err := installflags.ReadOperator(file, in)
		if err != nil {
			return nil, process.Usage(err)
		}
		values, err := tree.ParseMap(text)
		if err != nil {
			return nil, process.Refusedf("%s: %s", file, strings.ReplaceAll(err.Error(), "\n", ""))
		}
		if isOperator := migrate.IsOperator(values); isOperator && !named {
			operators = append(operators, merge.File{Name: file, Text: text})
			continue
		} else if isOperator {
			return nil, process.Usagef("%s holds an IstioOperator, no values of a chart; leave out %s=", file, chart)
		}
		v := migrate.Values{File: file, Tree: values}
		if named {
			v.Chart, err = migrate.ParseChart(chart)
		} else {
			v.Chart, err = migrate.Detect(values)
		}
		if err != nil {
			return nil, process.Usagef("%s: %w", name, err)
		}
		charts = append(charts, v)
	}
	var r *migrate.Result
	var err error
	switch {
	case len(operators) > 0 && len(charts) > 0:
		return nil, process.Usagef("%s holds an IstioOperator, and %s values of a chart; migrate one kind at a time", operators[0].Name,
			charts[0].File)
	case len(operators) > 0:
		r, err = migrate.Operator(merge.Inputs{Files: operators, Set: f.Set, Revision: f.Revision}, pkg)
	case len(f.Set) > 0:
		return nil, process.Usage(errors.New("--set is a setting of an IstioOperator, and the files are values of charts"))
	default:
		r, err = migrate.Helm(charts, pkg)
	}
	if err != nil {
		return nil, process.Refused(err)
	}
	return r, nil
}

// operators is the resource of IstioOperators.
var operators = schema.GroupVersionResource{Group: "install.istio.io", Version: "v1alpha1", Resource: "istiooperators"}

// fromCluster migrates what runs.
func (f *migrateFlags) fromCluster(ctx context.Context, pkg *profile.Package) (*migrate.Result, error) {
	config, err := f.Rest()
	if err != nil {
		return nil, err
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	file, err := f.clusterOperator(ctx, untyped)
	if err != nil {
		return nil, kube.Explain(err)
	}
	if file != nil {
		r, err := migrate.Operator(merge.Inputs{Files: []merge.File{*file}, Set: f.Set, Revision: f.Revision}, pkg)
		if err != nil {
			return nil, process.Refused(err)
		}
		return r, nil
	}
	if len(f.Set) > 0 {
		return nil, process.Usage(errors.New("--set is a setting of an IstioOperator, and the cluster has none"))
	}
	api, err := kube.NewAPI(config)
	if err != nil {
		return nil, err
	}
	objects, err := f.objects(ctx, api)
	if err != nil {
		return nil, kube.Explain(err)
	}
	return migrate.Cluster(objects, pkg)
}

// clusterOperator reads the IstioOperator of the cluster; nil if it has none.
func (f *migrateFlags) clusterOperator(ctx context.Context, api dynamic.Interface) (*merge.File, error) {
	list, err := api.Resource(operators).List(ctx, metav1.ListOptions{Limit: kube.Page})
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		list, err = &unstructured.UnstructuredList{}, nil
	}
	if err != nil {
		return nil, err
	}
	found := lists.Filter(list.Items, func(u unstructured.Unstructured) bool {
		revision := tree.GetString(u.Object, "spec", "revision")
		return (f.operator == "" || u.GetName() == f.operator) && (f.Revision == "" || revision == f.Revision)
	})
	switch {
	case len(found) == 0 && f.operator != "":
		return nil, process.Usagef("the cluster has no IstioOperator %q", f.operator)
	case len(found) == 0:
		return nil, nil //nolint:nilnil // there is none
	case len(found) > 1:
		names := lists.Map(found, func(u unstructured.Unstructured) string { return u.GetName() })
		return nil, process.Usagef("the cluster has several IstioOperators, %s; name one with --operator", strings.Join(names, ", "))
	}
	text, err := tree.Text(merge.Operator(tree.GetMap(found[0].Object, "spec")))
	return &merge.File{Name: "IstioOperator " + found[0].GetNamespace() + "/" + found[0].GetName(), Text: text}, err
}

// objects reads what a cluster has of an installation.
func (f *migrateFlags) objects(ctx context.Context, api kube.API) (o migrate.Objects, err error) {
	o.Namespace, o.Revision = f.IstioNamespace, f.Revision
	every := metav1.ListOptions{}
	maps, noMaps := api.CoreV1().ConfigMaps(o.Namespace).List(ctx, every)
	deployments, noDeployments := api.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, every)
	daemons, noDaemons := api.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, every)
	services, noServices := api.CoreV1().Services(metav1.NamespaceAll).List(ctx, every)
	scalers, noScalers := api.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll).List(ctx, every)
	if err := cmp.Or(noMaps, noDeployments, noDaemons, noServices, noScalers); err != nil {
		return o, err
	}
	o.ConfigMaps, o.Deployments, o.DaemonSets, o.Services, o.HPAs = maps.Items, deployments.Items, daemons.Items, services.Items, scalers.Items
	return o, nil
}
