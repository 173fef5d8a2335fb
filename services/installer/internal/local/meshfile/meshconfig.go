package meshfile

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Config is what a node needs of MeshConfig.
type Config struct {
	// TrustDomain of the mesh; empty if the files do not say.
	TrustDomain string `json:"trustDomain"`
	// RootNamespace of the mesh; empty if the files do not say.
	RootNamespace string `json:"rootNamespace"`
	// DefaultConfig is the ProxyConfig of all proxies, as written.
	DefaultConfig proxyconfig.Config `json:"defaultConfig"`
}

// readConfig takes MeshConfig from ConfigMap istio-system/istio, key mesh, where Istio keeps it. What else it says is
// config-watcher's to judge.
func (m *Mesh) readConfig(o *objectfile.Object) error {
	cm := &corev1.ConfigMap{}
	if err := o.Decode(cm); err != nil {
		return err
	}
	return o.DecodeText("data.mesh", cm.Data["mesh"], &m.Config, "correct the YAML of MeshConfig")
}

// ProxyConfig is what the proxy of a Pod, of the object o, is started with.
func (m *Mesh) ProxyConfig(o *objectfile.Object, labels, annotations map[string]string) (proxyconfig.Config, error) {
	var own proxyconfig.Config
	const field = "spec.template.metadata.annotations[" + proxyconfig.Annotation + "]"
	if err := o.DecodeText(field, annotations[proxyconfig.Annotation], &own, "correct the YAML of ProxyConfig"); err != nil {
		return nil, err
	}
	root := cmp.Or(m.Config.RootNamespace, "istio-system")
	return proxyconfig.Of(m.Config.DefaultConfig, m.ProxyConfigs, root, proxyconfig.Workload{Namespace: o.Namespace, Labels: labels, Own: own}), nil
}
