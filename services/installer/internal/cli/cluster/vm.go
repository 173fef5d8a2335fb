package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	clientv1 "istio.io/client-go/pkg/apis/networking/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/machine"
)

func newVM() *cobra.Command {
	return command.Group("vm", "Machines outside of Kubernetes that join the mesh", newConfigure("bootstrap", true))
}

// newWorkload is istioctl's group of commands for machines.
func newWorkload() *cobra.Command {
	cmd := command.Group("workload", "istioctl's commands for machines outside of Kubernetes",
		command.Group("group", "WorkloadGroups", newGroupCreate()),
		command.Group("entry", "Files of a machine", newConfigure("configure", false)))
	cmd.Hidden = true
	return cmd
}

// newGroupCreate prints a WorkloadGroup.
func newGroupCreate() *cobra.Command {
	var name, namespace string
	var labels, annotations, ports []string
	template := &networking.WorkloadEntry{}
	cmd := &cobra.Command{
		Use: "create", Short: "Print a WorkloadGroup", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" || namespace == "" {
				return process.Usage(errors.New("--name and --namespace are required"))
			}
			meta := &networking.WorkloadGroup_ObjectMeta{}
			for _, p := range ports {
				key, text, _ := strings.Cut(p, "=")
				n, err := strconv.ParseUint(text, 10, 16)
				if err != nil || n == 0 {
					return process.Usagef("--ports %s: not a name and a port; write http=8080", p)
				}
				if template.Ports == nil {
					template.Ports = map[string]uint32{}
				}
				template.Ports[key] = uint32(n)
			}
			var err error
			if meta.Labels, err = pairs("labels", labels); err != nil {
				return err
			}
			if meta.Annotations, err = pairs("annotations", annotations); err != nil {
				return err
			}
			js, err := protojson.Marshal(&networking.WorkloadGroup{Metadata: meta, Template: template})
			if err != nil {
				return err
			}
			var spec map[string]any
			if err := yaml.Unmarshal(js, &spec); err != nil {
				return err
			}
			if len(labels)+len(annotations) == 0 {
				spec["metadata"] = map[string]any{}
			}
			out, err := yaml.Marshal(map[string]any{
				"apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup", "metadata": map[string]any{"name": name, "namespace": namespace},
				"spec": spec,
			})
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "name", "", "name of the WorkloadGroup")
	fs.StringVarP(&namespace, "namespace", "n", "", "its namespace")
	fs.StringSliceVarP(&labels, "labels", "l", nil, "labels of the workloads, app=web,version=v1")
	fs.StringSliceVarP(&annotations, "annotations", "a", nil, "annotations of the workloads")
	fs.StringSliceVarP(&ports, "ports", "p", nil, "ports of the workloads by name, http=8080")
	fs.StringVarP(&template.ServiceAccount, "serviceAccount", "s", "default", "service account of the workloads")
	fs.StringVar(&template.Network, "network", "", "network of the workloads")
	fs.StringVar(&template.Locality, "locality", "", "locality of the workloads")
	fs.Uint32VarP(&template.Weight, "weight", "w", 0, "weight of each workload")
	return cmd
}

func pairs(flag string, texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		k, v, ok := strings.Cut(text, "=")
		if !ok || k == "" {
			return nil, process.Usagef("--%s %s: not a name and a value; write app=web", flag, text)
		}
		out[k] = v
	}
	return out, nil
}

// vmFlags are the flags of the commands that write a machine's files.
type vmFlags struct {
	kubeflags.Cluster
	machine.Options
	file, name, namespace, dir, ingressService string
	tokenSeconds                               int64
}

// newConfigure writes the files of a machine.
func newConfigure(use string, register bool) *cobra.Command {
	var f vmFlags
	cmd := &cobra.Command{
		Use: use, Short: "Write the files that a machine needs to join the mesh",
		Long: `Write the files that a machine needs to join the mesh as a member of a WorkloadGroup, under the names and with the content of
istioctl x workload entry configure: cluster.env, mesh.yaml, root-cert.pem, istio-token and hosts. The token lets whoever
has it join as the group's service account until it expires.`,
		Example: "  fairlead vm bootstrap --name machines -n shop -o ./machine\n  fairlead vm bootstrap -f group.yaml -o ./machine " +
			"--tokenDuration 600",
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.Add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", "file with the WorkloadGroup; without it, it is read from the API server")
	fs.StringVar(&f.name, "name", "", "name of the WorkloadGroup")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "its namespace")
	fs.StringVarP(&f.dir, "output", "o", "", "directory to write to")
	fs.StringVar(&f.ClusterID, "clusterID", "Kubernetes", "id of the cluster")
	fs.StringVarP(&f.Revision, "revision", "r", "", "revision of the control plane")
	fs.Int64Var(&f.tokenSeconds, "tokenDuration", 3600, "how many seconds the token is valid")
	fs.StringVar(&f.ingressService, "ingressService", "istio-eastwestgateway",
		"Service of the gateway that leads to the control plane, SERVICE or SERVICE.NAMESPACE")
	fs.StringVar(&f.IngressIP, "ingressIP", "", "address of that gateway")
	fs.BoolVar(&f.AutoRegister, "autoregister", register, "have the control plane make the WorkloadEntry when the machine connects")
	fs.BoolVar(&f.CaptureDNS, "capture-dns", true, "have the agent answer DNS queries")
	fs.StringVar(&f.InternalIP, "internalIP", "", "internal address of the machine")
	fs.StringVar(&f.ExternalIP, "externalIP", "", "external address of the machine")
	return cmd
}

func (f *vmFlags) run(cmd *cobra.Command) error {
	switch {
	case f.file == "" && (f.name == "" || f.namespace == ""):
		return process.Usage(errors.New("no WorkloadGroup is named: set --file, or --name and --namespace"))
	case f.dir == "":
		return process.Usage(errors.New("--output is required: the directory to write to"))
	case f.InternalIP != "" && f.ExternalIP != "":
		return process.Usage(errors.New("--internalIP and --externalIP exclude each other"))
	case f.tokenSeconds < 600:
		return process.Usagef("--tokenDuration %d: Kubernetes issues no token for less than 600 seconds", f.tokenSeconds)
	}
	for flag, text := range map[string]string{"ingressIP": f.IngressIP, "internalIP": f.InternalIP, "externalIP": f.ExternalIP} {
		if _, err := netip.ParseAddr(text); text != "" && err != nil {
			return process.Usagef("--%s %s: not an IP address", flag, text)
		}
	}
	f.Options.IstioNamespace = f.Cluster.IstioNamespace
	api, err := f.API()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 4*f.Timeout)
	defer cancel()
	if err := f.readGroup(ctx); err != nil {
		return err
	}
	configMap := "istio"
	if f.Revision != "" && f.Revision != "default" {
		configMap += "-" + f.Revision
	}
	config, err := api.CoreV1().ConfigMaps(f.Cluster.IstioNamespace).Get(ctx, configMap, metav1.GetOptions{})
	if err != nil {
		return kube.Explain(err)
	}
	f.MeshConfig = []byte(config.Data["mesh"])
	namespace, account := f.Group.Namespace, f.Group.Spec.Template.GetServiceAccount()
	roots, err := api.CoreV1().ConfigMaps(namespace).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil {
		return kube.Explain(err)
	}
	if f.IngressIP == "" {
		f.IngressIP = f.gateway(ctx, api)
	}
	if f.IngressIP == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: Service %s has no address, so the machine must resolve %s by itself; or set --ingressIP\n",
			f.ingressService, f.ControlPlane())
	}
	files, err := f.Files()
	if err != nil {
		return process.Refused(err)
	}
	token, err := api.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"istio-ca"}, ExpirationSeconds: &f.tokenSeconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return kube.Explain(err)
	}
	files[machine.RootFile], files[machine.TokenFile] = []byte(roots.Data["root-cert.pem"]), []byte(token.Status.Token)
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		mode := os.FileMode(0o644)
		if name == machine.TokenFile {
			mode = 0o600
		}
		if err := fileio.Write(filepath.Join(f.dir, name), content, mode); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: files of a machine of WorkloadGroup %s/%s; %s is a secret, valid until %s\n", f.dir, namespace,
		f.Group.Name,
		machine.TokenFile, token.Status.ExpirationTimestamp.UTC().Format("2006-01-02 15:04:05 MST"))
	return nil
}

// readGroup reads the WorkloadGroup from the file or the API server.
func (f *vmFlags) readGroup(ctx context.Context) error {
	f.Group = &clientv1.WorkloadGroup{}
	var text []byte
	if f.file != "" {
		var err error
		if text, err = os.ReadFile(f.file); err != nil {
			return process.Usage(err)
		}
	} else {
		config, err := f.Rest()
		if err != nil {
			return err
		}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		groups := schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadgroups"}
		o, err := client.Resource(groups).Namespace(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
		if err != nil {
			return kube.Explain(err)
		}
		if text, err = o.MarshalJSON(); err != nil {
			return err
		}
	}
	if err := yaml.Unmarshal(text, f.Group); err != nil {
		return process.Refusedf("%s: no WorkloadGroup: %w", f.file, err)
	}
	if f.Group.Kind != "WorkloadGroup" || f.Group.Name == "" || f.Group.Namespace == "" {
		return process.Refusedf("%s: not a WorkloadGroup with a name and a namespace", f.file)
	}
	machine.Complete(f.Group)
	return nil
}

// gateway is the address of the gateway's Service; "" if it has none.
func (f *vmFlags) gateway(ctx context.Context, api kube.API) string {
	name, namespace, ok := strings.Cut(f.ingressService, ".")
	if !ok {
		namespace = f.Cluster.IstioNamespace
	}
	s, err := api.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			return in.IP
		}
	}
	if len(s.Spec.ExternalIPs) > 0 {
		return s.Spec.ExternalIPs[0]
	}
	return ""
}
