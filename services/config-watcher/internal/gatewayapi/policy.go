package gatewayapi

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// targetsOf are the Services that a policy targets, each once.
func targetsOf(o *object.Object) []Name {
	var out []Name
	for _, ref := range o.Body.(*gatewayv1.BackendTLSPolicy).Spec.TargetRefs {
		if ref.Group == "" && ref.Kind == service {
			out = append(out, Name{Namespace: o.Key.Namespace, Name: string(ref.Name)})
		}
	}
	return out
}

func (s *State) policy(object.Key) {}
