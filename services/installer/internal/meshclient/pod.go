package meshclient

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/proxyname"
)

// ProxyContainer is the container of a Pod's agent and Envoy.
const ProxyContainer = "istio-proxy"

// maxDump bounds what is read of an Envoy's admin interface through the API server.
const maxDump = 256 << 20

// Pod is a Pod of a cluster, which may have a proxy.
type Pod struct {
	*corev1.Pod
	ControlPlane *controlplane.Mesh
}

// Pod finds a Pod of the cluster by the name of its proxy, whether that is connected or not. m is a cluster's.
func (m *Mesh) Pod(ctx context.Context, name, namespace string) (*Pod, error) {
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, process.Usage(err)
	}
	controlPlane, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	api, err := m.Cluster.API()
	if err != nil {
		return nil, err
	}
	list, err := m.Fleet(ctx, Selection{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	ns, pod := "", ""
	if p, err := MatchOneProxy(list.GetProxies(), wanted); err == nil {
		ns, pod = p.GetNamespace(), PodName(p)
	} else if ns, pod = WholeName(name, namespace); pod == "" {
		return nil, err
	}
	found, err := api.CoreV1().Pods(ns).Get(ctx, pod, metav1.GetOptions{})
	if wanted.OfDeployment() && (apierrors.IsNotFound(err) || err == nil && found.DeletionTimestamp != nil) {
		if other := staying(ctx, api, list.GetProxies(), wanted); other != nil {
			found, err = other, nil
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no Pod %s in namespace %s; `fairlead proxy-status` lists the connected proxies", pod, ns)
	}
	if err != nil {
		return nil, kube.Explain(err)
	}
	return &Pod{found, controlPlane}, nil
}

// staying is the first of a Deployment's Pods with a connected proxy that is not being deleted; nil if there is none.
func staying(ctx context.Context, api kube.API, all []*configv1.ProxyStatus, wanted proxyname.Wanted) *corev1.Pod {
	proxies, err := MatchProxies(all, wanted)
	if err != nil {
		return nil
	}
	for _, p := range proxies {
		found, err := api.CoreV1().Pods(p.GetNamespace()).Get(ctx, PodName(p), metav1.GetOptions{})
		if err == nil && found.DeletionTimestamp == nil {
			return found
		}
	}
	return nil
}

// WholeName splits NAME.NAMESPACE, or takes the namespace of -n; "" if the namespace is not known.
func WholeName(name, namespace string) (ns, pod string) {
	name = strings.TrimPrefix(name, "pod/")
	if strings.Contains(name, "/") {
		return "", ""
	}
	if namespace != "" {
		return namespace, strings.TrimSuffix(name, "."+namespace)
	}
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return name[i+1:], name[:i]
	}
	return "", ""
}

// Container is the Pod's container with the proxy; nil if it has none.
func (p *Pod) Container() *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == ProxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// Admin returns a client of the Envoy's admin interface. The agent in the Pod is asked to send the requests, because
// the interface is a unix socket, or a port of a stock sidecar that its own command knows.
func (p *Pod) Admin() (*envoyadmin.Client, error) {
	c := p.Container()
	if c == nil {
		return nil, fmt.Errorf("Pod %s/%s has no container %s: it was not injected; `fairlead describe pod %s.%s` says more", p.Namespace, p.Name,
			ProxyContainer, p.Name, p.Namespace)
	}
	command := []string{"pilot-agent", "request"}
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "--state-dir=") {
			command = append(command, arg)
		}
	}
	conn := p.ControlPlane.Pod(p.Namespace, p.Name)
	return envoyadmin.NewBy(func(ctx context.Context, method, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, kube.RequestTimeout)
		defer cancel()
		return conn.Run(ctx, c.Name, slices.Concat(command, []string{"--", method, strings.TrimPrefix(path, "/")}), maxDump)
	}), nil
}

// IsProxyless reports whether the Pod's application is a proxyless gRPC client: its container has an agent and no
// Envoy.
func (p *Pod) IsProxyless() bool {
	c := p.Container()
	return c != nil && slices.Contains(c.Env, corev1.EnvVar{Name: "ISTIO_META_GENERATOR", Value: "grpc"})
}

// Admin returns a client of the admin interface of a proxy's Envoy: of a Pod of the cluster, or of the run directory.
func (m *Mesh) Admin(ctx context.Context, name, namespace string) (*envoyadmin.Client, error) {
	found, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if found != nil {
		p, err := m.Pod(ctx, name, namespace)
		if err != nil {
			return nil, err
		}
		return p.Admin()
	}
	state, err := m.State()
	if err != nil {
		return nil, err
	}
	pod, err := rundir.Proxy(state, name, namespace)
	if err != nil {
		return nil, err
	}
	if pod.Kind == Proxyless {
		return nil, fmt.Errorf("%s is a gRPC program without an Envoy", pod.ID())
	}
	return envoyadmin.New(pod.Agent.AdminSocket), nil
}

// defaultStatusPort is where agents listen for orders unless the Pod says otherwise.
const defaultStatusPort = 15020

// StatusPort is the port of the Pod's agent: that of its annotation, which goes before its ProxyConfig.
func (p *Pod) StatusPort() (port uint16, err error) {
	text := p.Annotations["status.sidecar.istio.io/port"]
	for _, e := range p.Container().Env {
		if e.Name != "PROXY_CONFIG" || text != "" {
			continue
		}
		var c struct{ StatusPort uint16 }
		if err := yaml.Unmarshal([]byte(e.Value), &c); err != nil {
			return 0, fmt.Errorf("Pod %s/%s, container %s, PROXY_CONFIG: %w", p.Namespace, p.Name, ProxyContainer, err)
		}
		if c.StatusPort > 0 {
			return c.StatusPort, nil
		}
	}
	if text == "" {
		return defaultStatusPort, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("Pod %s/%s, annotation status.sidecar.istio.io/port: %q is no port, so its agent cannot be asked", p.Namespace,
			p.Name, text)
	}
	return uint16(n), nil
}
