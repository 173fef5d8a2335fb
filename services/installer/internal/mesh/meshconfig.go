package mesh

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Config is what a node needs of MeshConfig.
type Config struct {
	// TrustDomain of the mesh; empty if the files do not say.
	TrustDomain string `json:"trustDomain"`
	// DefaultConfig is the ProxyConfig of all proxies, as written.
	DefaultConfig map[string]any `json:"defaultConfig"`
}

// ProxyConfigAnnotation overlays a Pod's ProxyConfig on the mesh's.
const ProxyConfigAnnotation = "proxy.istio.io/config"

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

// ProxyConfig is the ProxyConfig of a Pod as YAML: the mesh's defaults, overlaid by the Pod's annotation. Nested maps are merged, everything
// else is replaced, as Istio's injection does.
func (m *Mesh) ProxyConfig(o *Object, annotations map[string]string) ([]byte, error) {
	merged := maps.Clone(m.Config.DefaultConfig)
	if text := annotations[ProxyConfigAnnotation]; text != "" {
		var own map[string]any
		if err := yaml.Unmarshal([]byte(text), &own); err != nil {
			return nil, o.Refuse("spec.template.metadata.annotations["+ProxyConfigAnnotation+"]", cleanYAML(err), "correct the YAML of ProxyConfig")
		}
		merged = merge(merged, own)
	}
	if len(merged) == 0 {
		return nil, nil
	}
	return yaml.Marshal(merged)
}

func merge(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range over {
		b, isMap := out[k].(map[string]any)
		o, both := v.(map[string]any)
		if isMap && both {
			v = merge(b, o)
		}
		out[k] = v
	}
	return out
}
