package object

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/gatewaydeploy"
)

// Overlays is what is kept of a ConfigMap that has no certificates: whether the deployment of a Gateway can be changed
// by it, which is what other ConfigMaps that the mesh reads are for.
type Overlays struct {
	// Refused says why not, with field and remedy; "" if it can.
	Refused string
}

const (
	// maxRefused bounds Overlays.Refused.
	maxRefused = 1024
	// refusedEntry is the entry of a saved ConfigMap with Overlays.Refused. An API server has none of that name.
	refusedEntry = "<refused>"
)

// OverlaysOf judges the overlays of a ConfigMap.
func OverlaysOf(m *corev1.ConfigMap) *Overlays {
	if refused, saved := m.Data[refusedEntry]; saved {
		return &Overlays{Refused: refused}
	}
	name := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	if err := gatewaydeploy.CheckConfigMap(name, m.Data, true); err != nil {
		return &Overlays{Refused: Cut(err.Error(), maxRefused)}
	}
	return &Overlays{}
}

// Saved are the entries of a ConfigMap that OverlaysOf makes the same of.
func (o *Overlays) Saved() map[string]any {
	if o.Refused == "" {
		return nil
	}
	return map[string]any{refusedEntry: o.Refused}
}
