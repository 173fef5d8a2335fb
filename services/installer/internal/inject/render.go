package inject

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"text/template"

	"istio.io/api/annotation"
	"istio.io/api/label"
	meshconfig "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Variables that the webhook's URL, the values or a label set.
const (
	clusterVariable = "ISTIO_META_CLUSTER_ID"
	networkVariable = "ISTIO_META_NETWORK"
)

// nativeSidecarAnnotation decides for one Pod whether its proxy is a native sidecar.
const nativeSidecarAnnotation = "sidecar.istio.io/nativeSidecar"

// Input is what a template reads. Its fields are those that Istio documents for custom templates.
type Input struct {
	TypeMeta                 metav1.TypeMeta
	DeploymentMeta           types.NamespacedName
	ObjectMeta               metav1.ObjectMeta
	Spec                     corev1.PodSpec
	ProxyConfig              *meshconfig.ProxyConfig
	MeshConfig               *meshconfig.MeshConfig
	Values                   map[string]any
	Revision                 string
	NativeSidecars           bool
	ProxyImage               string
	ProxyInitImage           string
	ProxyUID                 int64
	ProxyGID                 int64
	InboundTrafficPolicyMode string
	CompliancePolicy         string
}

// injection is the injection of one Pod.
type injection struct {
	config   *Config
	request  Request
	warnings []string
	// proxy is the Pod's ProxyConfig.
	proxy *meshconfig.ProxyConfig
	// env are the variables that overwrite the proxy's.
	env map[string]string
	// before is what an earlier injection of this Pod says that it did; nil without one.
	before *status
	// overrides are containers of the user's with the name of a template's, as an earlier injection kept them.
	overrides containers
}

func (in *injection) run() (*corev1.Pod, error) {
	if err := checkSize(in.request.Pod); err != nil {
		return nil, err
	}
	in.request.Pod = withoutAllotted(in.request.Pod, in.request.Namespace)
	pod := in.request.Pod
	if err := checkAnnotations(pod.Annotations); err != nil {
		return nil, err
	}
	var err error
	if in.before, in.overrides, err = earlier(pod); err != nil {
		return nil, err
	}
	if err := checkEarlier(in.before, in.overrides); err != nil {
		return nil, err
	}
	if in.proxy, err = in.proxyConfig(); err != nil {
		return nil, err
	}
	in.env = in.variables()
	if p := pod.Spec.DNSPolicy; p != "" && p != corev1.DNSClusterFirst {
		in.warn("its dnsPolicy is %s, with which the proxy may not find the control plane; %s finds it", p, corev1.DNSClusterFirst)
	}
	in.warnProxyUser()
	merged, rendered, err := in.render()
	if err != nil {
		return nil, err
	}
	if merged, err = in.keepOverrides(merged, rendered); err != nil {
		return nil, err
	}
	return merged, in.complete(merged, rendered)
}

func (in *injection) warn(format string, args ...any) {
	in.warnings = append(in.warnings, "Pod "+Name(in.request.Pod)+": "+fmt.Sprintf(format, args...))
}

// variables are the cluster and the network of the values, over them what the URL says, over that the network of the
// Pod's label.
func (in *injection) variables() map[string]string {
	env := maps.Clone(in.request.Env)
	if env == nil {
		env = map[string]string{}
	}
	global := in.config.known.Global
	if env[clusterVariable] == "" && global.MultiCluster.ClusterName != "" {
		env[clusterVariable] = global.MultiCluster.ClusterName
	}
	network, labelled := in.request.Pod.Labels[label.TopologyNetwork.Name]
	if !labelled && env[networkVariable] == "" {
		network = global.Network
	}
	if network != "" {
		env[networkVariable] = network
	}
	return env
}

// native reports whether the proxy is a native sidecar.
func (in *injection) native() bool {
	switch in.request.Pod.Annotations[nativeSidecarAnnotation] {
	case "true":
		return true
	case "false":
		return false
	}
	return in.request.NativeSidecars
}

func (in *injection) input() *Input {
	c, pod := in.config, in.original()
	owner := in.request.Owner
	if owner == nil {
		o := OwnerOf(in.request.Pod)
		owner = &o
	}
	uid, gid := proxyUser(in.request.Namespace)
	return &Input{
		TypeMeta: owner.Type, DeploymentMeta: owner.Name, ObjectMeta: pod.ObjectMeta, Spec: pod.Spec,
		ProxyConfig: in.proxy, MeshConfig: c.mesh, Values: c.values, Revision: c.revision,
		NativeSidecars: in.request.NativeSidecars,
		ProxyImage:     c.image(c.known.Global.Proxy.Image, in.proxy.GetImage().GetImageType(), pod.Annotations),
		ProxyInitImage: c.image(c.known.Global.ProxyInit.Image, "", pod.Annotations),
		ProxyUID:       uid, ProxyGID: gid,
		InboundTrafficPolicyMode: inboundMode(c.mesh), CompliancePolicy: c.compliance,
	}
}

// render runs the Pod's templates one after the other. merged is the Pod with all of them; rendered is what they make
// of an empty Pod.
func (in *injection) render() (merged, rendered *corev1.Pod, err error) {
	data := in.input()
	merged, rendered = in.request.Pod.DeepCopy(), &corev1.Pod{}
	names := in.templates()
	if err := checkTemplates(names); err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		t := in.config.templates[name]
		if t == nil {
			return nil, nil, fmt.Errorf("no template %q in the injection configuration; the annotation %s takes %s",
				name, annotation.InjectTemplates.Name, in.config.templateNames())
		}
		text, err := execute(t, data)
		if err != nil {
			return nil, nil, fmt.Errorf("template %q: %w", name, err)
		}
		overlay, err := parseOverlay(text)
		if err != nil {
			return nil, nil, fmt.Errorf("template %q does not render to a Pod: %w", name, err)
		}
		if rendered, err = merge(rendered, overlay); err != nil {
			return nil, nil, fmt.Errorf("template %q: %w", name, err)
		}
		if in.native() && container(rendered.Spec.InitContainers, proxyContainer) != nil {
			moveToInit(merged)
		}
		if merged, err = merge(merged, overlay); err != nil {
			return nil, nil, fmt.Errorf("template %q does not fit to the Pod: %w", name, err)
		}
	}
	return merged, rendered, nil
}

// moveToInit makes the user's own istio-proxy an init container, where the template has the native sidecar.
func moveToInit(pod *corev1.Pod) {
	for i, c := range pod.Spec.Containers {
		if c.Name == proxyContainer {
			pod.Spec.Containers = append(pod.Spec.Containers[:i:i], pod.Spec.Containers[i+1:]...)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
			return
		}
	}
}

const (
	// maxRendered bounds the text that a template may make. A Pod cannot be larger than what etcd takes, 1.5 MiB.
	maxRendered = 4 << 20
	// maxWrites bounds the parts that it makes the text of, one for each round of a loop at least.
	maxWrites = 1 << 18
)

type bounded struct {
	bytes.Buffer
	writes int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.writes++; b.writes > maxWrites {
		return 0, fmt.Errorf("it does not end within %d steps; shorten its loops", maxWrites)
	}
	if b.Len()+len(p) > maxRendered {
		return 0, fmt.Errorf("it renders to more than %d bytes", maxRendered)
	}
	return b.Buffer.Write(p)
}

func execute(t *template.Template, data *Input) ([]byte, error) {
	var out bounded
	if err := t.Execute(&out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// templates lists the Pod's templates, aliases resolved once.
func (in *injection) templates() []string {
	names := in.config.defaults
	if text, ok := in.request.Pod.Annotations[annotation.InjectTemplates.Name]; ok {
		names = strings.Split(text, ",")
	}
	var out []string
	for _, name := range names {
		if name = strings.TrimSpace(name); in.config.aliases[name] != nil {
			out = append(out, in.config.aliases[name]...)
		} else {
			out = append(out, name)
		}
	}
	return out
}

func inboundMode(mesh *meshconfig.MeshConfig) string {
	if mesh.GetInboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		return "localhost"
	}
	return "passthrough"
}

// image returns the proxy's image: hub, name and tag of the values, and a variant ("debug", "distroless", or "default"
// for none) which replaces the tag's own. The annotation of the Pod wins, then the ProxyConfig, then the values.
func (c *Config) image(name, variant string, annotations map[string]string) string {
	g := c.known.Global
	if name == "" {
		name = "proxyv2"
	}
	if variant == "" {
		variant = g.Variant
	}
	if v, ok := annotations[annotation.SidecarProxyImageType.Name]; ok {
		variant = v
	}
	tag := ""
	if g.Tag != nil {
		tag = fmt.Sprint(g.Tag)
	}
	if variant != "" {
		for _, known := range []string{"-distroless", "-debug"} {
			if plain, ok := strings.CutSuffix(tag, known); ok {
				tag = plain
				break
			}
		}
		if variant != "default" {
			tag += "-" + variant
		}
	}
	return g.Hub + "/" + name + ":" + tag
}
