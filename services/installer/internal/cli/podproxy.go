package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/proxyname"
)

// proxyContainer is the container of a Pod's agent and Envoy.
const proxyContainer = "istio-proxy"

// maxDump bounds what is read of an Envoy's admin interface through the API server.
const maxDump = 256 << 20

// podProxy is a Pod of a cluster with a proxy.
type podProxy struct {
	*corev1.Pod
	mesh *controlplane.Mesh
}

// findPod finds a Pod of the cluster by the name of its proxy, whether that is connected or not.
func (t *target) findPod(ctx context.Context, mesh *controlplane.Mesh, name, namespace string) (*podProxy, error) {
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, usage(err)
	}
	api, err := t.cluster.client()
	if err != nil {
		return nil, err
	}
	list, err := t.listProxies(ctx, selection{namespace: namespace})
	if err != nil {
		return nil, err
	}
	ns, pod := "", ""
	if p, err := matchOneProxy(list.GetProxies(), wanted); err == nil {
		ns, pod = p.GetNamespace(), podName(p)
	} else if ns, pod = wholeName(name, namespace); pod == "" {
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
	return &podProxy{found, mesh}, nil
}

// staying is the first of a Deployment's Pods with a connected proxy that is not being deleted; nil if there is none.
func staying(ctx context.Context, api kube.API, all []*configv1.ProxyStatus, wanted proxyname.Wanted) *corev1.Pod {
	proxies, err := matchProxies(all, wanted)
	if err != nil {
		return nil
	}
	for _, p := range proxies {
		found, err := api.CoreV1().Pods(p.GetNamespace()).Get(ctx, podName(p), metav1.GetOptions{})
		if err == nil && found.DeletionTimestamp == nil {
			return found
		}
	}
	return nil
}

// wholeName splits NAME.NAMESPACE, or takes the namespace of -n; "" if the namespace is not known.
func wholeName(name, namespace string) (ns, pod string) {
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

// container is the Pod's container with the proxy; nil if it has none.
func (p *podProxy) container() *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == proxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// admin returns a client of the Envoy's admin interface. The agent in the Pod is asked to send the requests, because
// the interface is a unix socket, or a port of a stock sidecar that its own command knows.
func (p *podProxy) admin() (*envoyadmin.Client, error) {
	c := p.container()
	if c == nil {
		return nil, fmt.Errorf("Pod %s/%s has no container %s: it was not injected; `fairlead describe pod %s.%s` says more", p.Namespace, p.Name,
			proxyContainer, p.Name, p.Namespace)
	}
	command := []string{"pilot-agent", "request"}
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "--state-dir=") {
			command = append(command, arg)
		}
	}
	conn := p.mesh.Pod(p.Namespace, p.Name)
	return envoyadmin.NewBy(func(ctx context.Context, method, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return conn.Run(ctx, c.Name, slices.Concat(command, []string{"--", method, strings.TrimPrefix(path, "/")}), maxDump)
	}), nil
}

// defaultStatusPort is where agents listen for orders unless the Pod says otherwise.
const defaultStatusPort = 15020

// statusPort is the port of the Pod's agent: that of its annotation, which goes before its ProxyConfig.
func (p *podProxy) statusPort() (port uint16, err error) {
	text := p.Annotations["status.sidecar.istio.io/port"]
	for _, e := range p.container().Env {
		if e.Name != "PROXY_CONFIG" || text != "" {
			continue
		}
		var c struct{ StatusPort uint16 }
		if err := yaml.Unmarshal([]byte(e.Value), &c); err != nil {
			return 0, fmt.Errorf("Pod %s/%s, container %s, PROXY_CONFIG: %w", p.Namespace, p.Name, proxyContainer, err)
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

// podConfig shows what the Envoy of a Pod of the cluster holds.
func (t *target) podConfig(ctx context.Context, mesh *controlplane.Mesh, proxy string, sec envoyadmin.Section, f configFlags, out,
	diagnostics io.Writer) error {
	p, err := t.findPod(ctx, mesh, proxy, f.namespace)
	if err != nil {
		return err
	}
	name := p.Name + "." + p.Namespace
	client, err := p.admin()
	if err != nil {
		return err
	}
	if sec == logLevels {
		err = logLevelConfig(ctx, client, f, out)
	} else {
		err = envoyConfig(ctx, client, name, sec, f, out, diagnostics)
	}
	if err != nil {
		return fmt.Errorf("proxy %s: %w", name, err)
	}
	return nil
}
