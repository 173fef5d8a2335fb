// Package machine makes the files that a machine outside of Kubernetes needs to join a mesh as a member of a
// WorkloadGroup: those that `istioctl x workload entry configure` writes, with the same names and content. The commands
// `fairlead vm bootstrap` and `fairlead x workload` call it.
package machine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	clientv1 "istio.io/client-go/pkg/apis/networking/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/meshdefaults"
)

// Names of the files.
const (
	EnvFile   = "cluster.env"
	MeshFile  = "mesh.yaml"
	RootFile  = "root-cert.pem"
	TokenFile = "istio-token"
	HostsFile = "hosts"
)

// configAnnotation has settings of a workload's proxy.
const configAnnotation = "proxy.istio.io/config"

// Options of Files.
type Options struct {
	// Group is the WorkloadGroup; see Complete.
	Group *clientv1.WorkloadGroup
	// MeshConfig is the mesh's configuration as YAML.
	MeshConfig []byte
	// IstioNamespace and Revision are the control plane's; revision "" and "default" are the one without a name.
	IstioNamespace, Revision string
	ClusterID                string
	// InternalIP or ExternalIP is the machine's address, if its agent shall not find it out.
	InternalIP, ExternalIP string
	// IngressIP is where the machine reaches the control plane; "" if the machine resolves its name.
	IngressIP                string
	AutoRegister, CaptureDNS bool
}

// Complete sets the defaults of a WorkloadGroup.
func Complete(g *clientv1.WorkloadGroup) {
	if g.Spec.Metadata == nil {
		g.Spec.Metadata = &networking.WorkloadGroup_ObjectMeta{}
	}
	if g.Spec.Template == nil {
		g.Spec.Template = &networking.WorkloadEntry{}
	}
	g.Spec.Template.ServiceAccount = cmp.Or(g.Spec.Template.ServiceAccount, "default")
}

// ControlPlane is the host name of the control plane.
func (o Options) ControlPlane() string {
	name := "istiod"
	if o.revisioned() {
		name += "-" + o.Revision
	}
	return name + "." + o.IstioNamespace + ".svc"
}

func (o Options) revisioned() bool { return o.Revision != "" && o.Revision != "default" }

// Files returns cluster.env, mesh.yaml and hosts.
func (o Options) Files() (map[string][]byte, error) {
	config, err := o.proxyConfig()
	if err != nil {
		return nil, err
	}
	js, err := protojson.Marshal(config)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(js, &tree); err != nil {
		return nil, err
	}
	meshYAML, err := yaml.Marshal(map[string]any{"defaultConfig": tree})
	if err != nil {
		return nil, err
	}
	env := o.env(config)
	hosts := ""
	if o.IngressIP != "" {
		for _, name := range o.hosts(config, env["CA_ADDR"]) {
			hosts += o.IngressIP + " " + name + "\n"
		}
	}
	return map[string][]byte{EnvFile: quoted(env), MeshFile: meshYAML, HostsFile: []byte(hosts)}, nil
}

// hosts are the names of the control plane that the machine looks up and only the cluster's DNS knows: that which
// istioctl writes, and those of further Services in the addresses that the agent dials. Names of other kinds are left
// to the machine's own DNS.
func (o Options) hosts(config *mesh.ProxyConfig, ca string) []string {
	names := []string{o.ControlPlane()}
	for address := range strings.SplitSeq(config.GetDiscoveryAddress()+","+ca, ",") {
		host, _, err := net.SplitHostPort(strings.TrimSpace(address))
		if err != nil || slices.Contains(names, host) {
			continue
		}
		if parts := strings.Split(host, "."); len(parts) > 2 && parts[2] == "svc" {
			names = append(names, host)
		}
	}
	return names
}

// proxyConfig is the mesh's defaultConfig with the group's annotations, and metadata that describes the workload.
func (o Options) proxyConfig() (*mesh.ProxyConfig, error) {
	var meshTree map[string]any
	if err := yaml.Unmarshal(o.MeshConfig, &meshTree); err != nil {
		return nil, fmt.Errorf("mesh configuration: %w", err)
	}
	tree, _ := meshTree["defaultConfig"].(map[string]any)
	if tree == nil {
		tree = map[string]any{}
	}
	for _, annotations := range []map[string]string{o.Group.Annotations, o.Group.Spec.Metadata.GetAnnotations()} {
		var over map[string]any
		if err := yaml.Unmarshal([]byte(annotations[configAnnotation]), &over); err != nil {
			return nil, fmt.Errorf("WorkloadGroup %s/%s: annotation %s: %w", o.Group.Namespace, o.Group.Name, configAnnotation, err)
		}
		merge(tree, over)
	}
	js, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	config := &mesh.ProxyConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, config); err != nil {
		return nil, fmt.Errorf("defaultConfig of the mesh, with the annotations %s of WorkloadGroup %s/%s: %w", configAnnotation,
			o.Group.Namespace, o.Group.Name, err)
	}
	if o.revisioned() && config.DiscoveryAddress == "" {
		config.DiscoveryAddress = o.ControlPlane() + ":15012"
	}
	config.ReadinessProbe = o.Group.Spec.Probe
	if config.ProxyMetadata == nil {
		config.ProxyMetadata = map[string]string{}
	}
	trustDomain, _ := meshTree["trustDomain"].(string)
	return config, o.describe(config, trustDomain)
}

// merge lays one tree over another.
func merge(to, over map[string]any) {
	for k, v := range over {
		below, isMap := v.(map[string]any)
		if old, ok := to[k].(map[string]any); ok && isMap {
			merge(old, below)
			continue
		}
		to[k] = v
	}
}

// describe adds the metadata of the group's workloads.
func (o Options) describe(config *mesh.ProxyConfig, trustDomain string) error {
	template := o.Group.Spec.Template
	labels := map[string]string{}
	maps.Copy(labels, o.Group.Spec.Metadata.GetLabels())
	maps.Copy(labels, template.GetLabels())
	service := cmp.Or(labels["service.istio.io/canonical-name"], labels["app.kubernetes.io/name"], labels["app"], o.Group.Name)
	revision := cmp.Or(labels["service.istio.io/canonical-revision"], labels["app.kubernetes.io/version"], labels["version"], "latest")
	labels["service.istio.io/canonical-name"], labels["service.istio.io/canonical-revision"] = service, revision
	js, err := json.Marshal(labels)
	if err != nil {
		return err
	}
	md := config.ProxyMetadata
	maps.Copy(md, map[string]string{
		"CANONICAL_SERVICE": service, "CANONICAL_REVISION": revision, "POD_NAMESPACE": o.Group.Namespace,
		"SERVICE_ACCOUNT": template.GetServiceAccount(),
		"TRUST_DOMAIN":    trustDomain, "ISTIO_META_CLUSTER_ID": o.ClusterID, "ISTIO_META_MESH_ID": config.GetMeshId(),
		"ISTIO_META_NETWORK": template.GetNetwork(), "ISTIO_META_WORKLOAD_NAME": o.Group.Name, "ISTIO_METAJSON_LABELS": string(js),
	})
	if o.CaptureDNS {
		md["ISTIO_META_DNS_CAPTURE"] = "true"
	}
	if o.AutoRegister {
		md["ISTIO_META_AUTO_REGISTER_GROUP"] = o.Group.Name
	}
	type port struct {
		Name          string `json:"name,omitempty"`
		ContainerPort uint32 `json:"containerPort"`
		Protocol      string `json:"protocol"`
	}
	var ports []port
	for _, name := range slices.Sorted(maps.Keys(template.GetPorts())) {
		ports = append(ports, port{Name: name, ContainerPort: template.Ports[name]})
	}
	if len(ports) > 0 {
		if js, err = json.Marshal(ports); err != nil {
			return err
		}
		md["ISTIO_META_POD_PORTS"] = string(js)
	}
	return nil
}

// env is what cluster.env says: variables of the agent and of what redirects connections.
func (o Options) env(config *mesh.ProxyConfig) map[string]string {
	template := o.Group.Spec.Template
	var ports []string
	for _, name := range slices.Sorted(maps.Keys(template.GetPorts())) {
		ports = append(ports, strconv.FormatUint(uint64(template.Ports[name]), 10))
	}
	// SSH, and the ports of the agent itself.
	excluded := "22,15090,15021"
	if p := cmp.Or(config.GetStatusPort(), meshdefaults.StatusPort); p != 15090 && p != 15021 {
		excluded += fmt.Sprintf(",%d", p)
	}
	env := maps.Clone(config.GetProxyMetadata())
	maps.Copy(env, map[string]string{
		"ISTIO_INBOUND_PORTS": cmp.Or(strings.Join(ports, ","), "*"), "ISTIO_NAMESPACE": o.Group.Namespace,
		"ISTIO_SERVICE":      o.Group.Name + "." + o.Group.Namespace,
		"ISTIO_SERVICE_CIDR": "*", "ISTIO_LOCAL_EXCLUDE_PORTS": excluded, "SERVICE_ACCOUNT": template.GetServiceAccount(),
	})
	// Where the mesh names the address of its ca, revisions share that ca. istioctl writes istiod's name over it.
	if o.revisioned() && env["CA_ADDR"] == "" {
		env["CA_ADDR"] = o.ControlPlane() + ":15012"
	}
	if o.InternalIP != "" {
		env["ISTIO_SVC_IP"] = o.InternalIP
	} else if o.ExternalIP != "" {
		env["ISTIO_SVC_IP"], env["REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"] = o.ExternalIP, "true"
	}
	return env
}

// quoted is the text of cluster.env, sorted, with values that a shell can read.
func quoted(env map[string]string) []byte {
	var lines []string
	for k, v := range env {
		lines = append(lines, k+"="+quote(v)+"\n")
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, ""))
}

// quote quotes a text for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'"'"'`) + "'" }
