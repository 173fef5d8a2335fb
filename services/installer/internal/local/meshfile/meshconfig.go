package meshfile

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Config holds the fields of MeshConfig that the local runtime needs.
type Config struct {
	// TrustDomain of the mesh; empty if the files have none.
	TrustDomain string `json:"trustDomain"`
	// RootNamespace of the mesh; empty if the files have none.
	RootNamespace string `json:"rootNamespace"`
	// DefaultConfig is the ProxyConfig of all proxies.
	DefaultConfig proxyconfig.Config `json:"defaultConfig"`
}

// readConfig decodes MeshConfig from key mesh of ConfigMap istio-system/istio, where Istio keeps it. config-watcher
// validates its other fields.
func (m *Mesh) readConfig(o *objectfile.Object) error {
	cm := &corev1.ConfigMap{}
	if err := o.Decode(cm); err != nil {
		return err
	}
	return o.DecodeText("data.mesh", cm.Data["mesh"], &m.Config, "correct the YAML of MeshConfig")
}

// ProxyConfig returns the configuration that a Pod's proxy starts with; o is the object that the annotations are from.
func (m *Mesh) ProxyConfig(o *objectfile.Object, labels, annotations map[string]string) (proxyconfig.Config, error) {
	var own proxyconfig.Config
	const field = "spec.template.metadata.annotations[" + proxyconfig.Annotation + "]"
	if err := o.DecodeText(field, annotations[proxyconfig.Annotation], &own, "correct the YAML of ProxyConfig"); err != nil {
		return nil, err
	}
	root := cmp.Or(m.Config.RootNamespace, "istio-system")
	return proxyconfig.Of(m.Config.DefaultConfig, m.ProxyConfigs, root,
		proxyconfig.Workload{Namespace: o.Namespace, Labels: labels, Own: own}), nil
}
