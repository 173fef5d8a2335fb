package mesh

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
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

// readConfig takes MeshConfig from ConfigMap istio-system/istio, key mesh, where Istio keeps it. What else it says is config-watcher's to judge.
func (m *Mesh) readConfig(o *Object) error {
	cm := &corev1.ConfigMap{}
	if err := o.decode(cm); err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(cm.Data["mesh"]), &m.Config); err != nil {
		return o.Refuse("data.mesh", cleanYAML(err), "correct the YAML of MeshConfig")
	}
	return nil
}

// ProxyConfig is what the proxy of a Pod, of the object o, is started with.
func (m *Mesh) ProxyConfig(o *Object, labels, annotations map[string]string) (proxyconfig.Config, error) {
	var own proxyconfig.Config
	if err := yaml.Unmarshal([]byte(annotations[proxyconfig.Annotation]), &own); err != nil {
		return nil, o.Refuse("spec.template.metadata.annotations["+proxyconfig.Annotation+"]", cleanYAML(err), "correct the YAML of ProxyConfig")
	}
	root := cmp.Or(m.Config.RootNamespace, "istio-system")
	return proxyconfig.Of(m.Config.DefaultConfig, m.ProxyConfigs, root, proxyconfig.Workload{Namespace: o.Namespace, Labels: labels, Own: own}), nil
}
