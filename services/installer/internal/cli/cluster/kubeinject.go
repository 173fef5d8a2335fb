package cluster

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/inject/workload"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/objectfile"
)

// kubeInjectFlags are the flags of `fairlead kube-inject`, in istioctl's names.
type kubeInjectFlags struct {
	kubeflags.Cluster
	file, output, revision                       string
	injectConfigFile, valuesFile, meshConfigFile string
	operatorFile, injectConfigMap, meshConfigMap string
	webhookConfig                                string
	getenv                                       func(string) string
	in                                           io.Reader
	warnings                                     []string
}

func newKubeInject(env command.Env) *cobra.Command {
	f := kubeInjectFlags{getenv: env.Getenv, in: env.In}
	cmd := &cobra.Command{
		Use:   "kube-inject -f FILE",
		Short: "Add the sidecar to the workloads of a file",
		Long: `Add the sidecar to every workload of a file, as the injection webhook adds it to Pods: Pod, Deployment, DaemonSet, ReplicaSet, StatefulSet, Job, CronJob,
ReplicationController, DeploymentConfig, and Lists of them. Other objects stay as they are. Nothing is changed in a cluster.

Templates, values and mesh configuration are those of the cluster, of the revision's ConfigMaps, unless files are named. With --injectConfigFile,
--valuesFile (or --operatorFileName) and --meshConfigFile no cluster is asked. A workload is injected unless a label, an annotation, a selector of the
configuration, its namespace or the host's network forbids it; standard error says which are not, and why.

The sidecar is a native one if every node of the cluster runs them; without a cluster it is not. ENABLE_NATIVE_SIDECARS=true or false decides
otherwise.`,
		Example: `  kubectl apply -f <(fairlead kube-inject -f deployment.yaml)
  kubectl get deployment -o yaml | fairlead kube-inject -f - | kubectl apply -f -

  kubectl -n istio-system get cm istio-sidecar-injector -o jsonpath='{.data.config}' > inject-config.yaml
  kubectl -n istio-system get cm istio-sidecar-injector -o jsonpath='{.data.values}' > values.json
  kubectl -n istio-system get cm istio -o jsonpath='{.data.mesh}' > mesh.yaml
  fairlead kube-inject -f deployment.yaml -o injected.yaml \
    --injectConfigFile inject-config.yaml --valuesFile values.json --meshConfigFile mesh.yaml`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := f.run(cmd.Context())
			output.Warn(cmd.ErrOrStderr(), f.warnings)
			if err != nil {
				return err
			}
			return output.Write(cmd.OutOrStdout(), f.output, out)
		},
	}
	f.Add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "filename", "f", "", "file with the workloads, or - for standard input")
	fs.StringVarP(&f.output, "output", "o", "", "file to write, instead of standard output")
	fs.StringVarP(&f.revision, "revision", "r", "", "revision of the control plane whose configuration counts")
	fs.StringVar(&f.injectConfigFile, "injectConfigFile", "", "file with the injection configuration, or with a template alone")
	fs.StringVar(&f.valuesFile, "valuesFile", "", "file with the values of the injection configuration")
	fs.StringVar(&f.meshConfigFile, "meshConfigFile", "", "file with the mesh configuration")
	fs.StringVar(&f.operatorFile, "operatorFileName", "",
		"file with an IstioOperator, whose values and meshConfig count before those of other flags")
	fs.StringVar(&f.injectConfigMap, "injectConfigMapName", "istio-sidecar-injector",
		"ConfigMap with the injection configuration; its name with a revision is made from --revision")
	fs.StringVar(&f.meshConfigMap, "meshConfigMapName", "istio",
		"ConfigMap with the mesh configuration; its name with a revision is made from --revision")
	fs.StringVar(&f.webhookConfig, "webhookConfig", "", "not read: the templates come from the ConfigMap")
	_ = fs.MarkHidden("webhookConfig")
	for _, name := range []string{"filename", "output", "injectConfigFile", "valuesFile", "meshConfigFile", "operatorFileName"} {
		_ = cmd.MarkFlagFilename(name)
	}
	return cmd
}

// run reads the configuration and the file, and returns the injected file.
func (f *kubeInjectFlags) run(ctx context.Context) ([]byte, error) {
	if f.file == "" {
		return nil, process.Usage(errors.New("name the file with the workloads with -f"))
	}
	if f.webhookConfig != "" {
		f.warnings = append(f.warnings, "--webhookConfig is not read: the templates come from the ConfigMap, or from --injectConfigFile")
	}
	if f.revision == "default" {
		f.revision = ""
	}
	ctx, cancel := context.WithTimeout(ctx, 4*max(f.Timeout, time.Second))
	defer cancel()
	cluster := &injectCluster{flags: f}
	config, err := f.config(ctx, cluster)
	if err != nil {
		return nil, err
	}
	text, err := f.read(f.file)
	if err != nil {
		return nil, err
	}
	i := workload.Injector{Config: config}
	if cluster.api != nil {
		i.Options = cluster.options(ctx, config.Mesh())
	}
	if v, err := strconv.ParseBool(f.getenv("ENABLE_NATIVE_SIDECARS")); err == nil {
		i.NativeSidecars = v
	}
	out, err := i.Text(text)
	f.warnings = append(f.warnings, i.Warnings...)
	if err != nil {
		return nil, process.Refusedf("%s: %w", f.file, err)
	}
	return out, nil
}

// read reads a file, or standard input.
func (f *kubeInjectFlags) read(name string) ([]byte, error) {
	text, err := []byte(nil), error(nil)
	if name == "-" {
		text, err = fileio.ReadAll(f.in, objectfile.MaxFileBytes)
	} else {
		text, err = fileio.Read(name, objectfile.MaxFileBytes)
	}
	if err != nil {
		return nil, process.Usagef("%s: %w", name, err)
	}
	return text, nil
}

// config reads the configuration from files, and what they lack from the cluster.
func (f *kubeInjectFlags) config(ctx context.Context, cluster *injectCluster) (*inject.Config, error) {
	values, mesh, err := f.operator()
	if err != nil {
		return nil, err
	}
	if mesh == nil {
		text, err := f.text(f.meshConfigFile, func() ([]byte, error) { return cluster.key(ctx, f.meshConfigMap, "istio", "mesh") })
		if err != nil {
			return nil, err
		}
		if mesh, err = inject.ParseMesh(text); err != nil {
			return nil, process.Refused(err)
		}
	}
	templates, err := f.text(f.injectConfigFile,
		func() ([]byte, error) { return cluster.key(ctx, f.injectConfigMap, "istio-sidecar-injector", "config") })
	if err != nil {
		return nil, err
	}
	if values == nil {
		values, err = f.text(f.valuesFile,
			func() ([]byte, error) { return cluster.key(ctx, f.injectConfigMap, "istio-sidecar-injector", "values") })
		if err != nil {
			return nil, err
		}
	}
	config, err := inject.ParseForFiles(templates, values, mesh, f.revision)
	if err != nil {
		return nil, process.Refused(err)
	}
	return config.WithCompliance(f.getenv("COMPLIANCE_POLICY")), nil
}

// text reads a file, or asks otherwise if none is named.
func (f *kubeInjectFlags) text(file string, otherwise func() ([]byte, error)) ([]byte, error) {
	if file != "" {
		return f.read(file)
	}
	return otherwise()
}

// operator returns the values and the mesh configuration of the IstioOperator, over those of its profile; nil of either
// where it has none.
func (f *kubeInjectFlags) operator() (values []byte, mesh *meshconfig.MeshConfig, err error) {
	if f.operatorFile == "" {
		return nil, nil, nil
	}
	in, err := (&installflags.Inputs{Files: []string{f.operatorFile}}).Read(f.in)
	if err != nil {
		return nil, nil, err
	}
	merged, err := install.Spec(in)
	if err != nil {
		return nil, nil, process.Refused(err)
	}
	f.warnings = append(f.warnings, merged.Warnings...)
	if values, err = yaml.Marshal(tree.GetMap(merged.Spec, "values")); err != nil {
		return nil, nil, err
	}
	if own := tree.GetMap(merged.Spec, "meshConfig"); own != nil {
		text, err := yaml.Marshal(own)
		if err != nil {
			return nil, nil, err
		}
		if mesh, err = inject.ParseMesh(text); err != nil {
			return nil, nil, process.Refusedf("--operatorFileName %s: %w", f.operatorFile, err)
		}
	}
	return values, mesh, nil
}
