package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/client-go/pkg/apis/networking/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/inject/workload"
	"fairlead.dev/services/installer/internal/kube"
)

// injectCluster is the cluster whose configuration `fairlead kube-inject` takes. It is asked only for what no file has:
// api stays nil if nothing was.
type injectCluster struct {
	flags *kubeInjectFlags
	api   kube.API
	maps  map[string]*corev1.ConfigMap
}

// key returns a key of a ConfigMap. The default name gets the revision appended.
func (c *injectCluster) key(ctx context.Context, name, usual, key string) ([]byte, error) {
	if name == usual && c.flags.revision != "" {
		name += "-" + c.flags.revision
	}
	m := c.maps[name]
	if m == nil {
		if c.api == nil {
			api, err := c.flags.API()
			if err != nil {
				return nil, fmt.Errorf("%w; or name files with --injectConfigFile, --valuesFile and --meshConfigFile", err)
			}
			c.api, c.maps = api, map[string]*corev1.ConfigMap{}
		}
		var err error
		m, err = c.api.CoreV1().ConfigMaps(c.flags.IstioNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, process.Refusedf(
				"no ConfigMap %s in the namespace %s; name the control plane's namespace with -i and its revision with -r, or files", name,
				c.flags.IstioNamespace)
		}
		if err != nil {
			return nil, kube.Explain(err)
		}
		c.maps[name] = m
	}
	text, ok := m.Data[key]
	if !ok {
		return nil, process.Refusedf("the ConfigMap %s in the namespace %s has no key %s; install the control plane again, or name files", name,
			c.flags.IstioNamespace, key)
	}
	return []byte(text), nil
}

// options reads what a cluster knows besides the configuration. What may not be read is a warning: the result is then
// that of a cluster without it.
func (c *injectCluster) options(ctx context.Context, mesh *meshconfig.MeshConfig) workload.Options {
	native, err := c.native(ctx)
	c.warn("whether the nodes run native sidecars", err)
	configs, err := c.proxyConfigs(ctx)
	c.warn("ProxyConfig resources", err)
	namespaces := map[string]*corev1.Namespace{}
	return workload.Options{
		NativeSidecars: native, ProxyConfigs: configs,
		Namespace: func(name string) *corev1.Namespace {
			if _, asked := namespaces[name]; !asked {
				ns, err := c.api.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					ns = nil
					if !apierrors.IsNotFound(err) {
						c.warn("the namespace "+name, err)
					}
				}
				namespaces[name] = ns
			}
			return namespaces[name]
		},
	}
}

func (c *injectCluster) warn(what string, err error) {
	if err != nil {
		c.flags.warnings = append(c.flags.warnings,
			fmt.Sprintf("%s could not be read, and count as if there were none: %v", what, kube.Explain(err)))
	}
}

// native reports whether there are nodes and all of them run native sidecars.
func (c *injectCluster) native(ctx context.Context) (bool, error) {
	found := false
	for o := (metav1.ListOptions{Limit: kube.Page}); ; {
		nodes, err := c.api.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return false, err
		}
		for i := range nodes.Items {
			if !inject.RunsNativeSidecars(nodes.Items[i].Status.NodeInfo.KubeletVersion) {
				return false, nil
			}
			found = true
		}
		if o.Continue = nodes.Continue; o.Continue == "" {
			return found, nil
		}
	}
}

// proxyConfigs lists the ProxyConfig resources of all namespaces. An API server without the kind has none.
func (c *injectCluster) proxyConfigs(ctx context.Context) ([]proxyconfig.Resource, error) {
	var out []proxyconfig.Resource
	for next := ""; ; {
		text, err := c.api.Discovery().RESTClient().Get().AbsPath("/apis/networking.istio.io/v1beta1/proxyconfigs").
			Param("limit", fmt.Sprint(kube.Page)).Param("continue", next).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		var list networking.ProxyConfigList
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			return nil, err
		}
		for _, p := range list.Items {
			out = append(out, proxyconfig.Resource{Namespace: p.Namespace, Name: p.Name, Created: p.CreationTimestamp.Time, Spec: &p.Spec})
		}
		if next = list.Continue; next == "" {
			return out, nil
		}
	}
}
