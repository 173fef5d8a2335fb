package gatewayapi

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/services/config-watcher/internal/object"
)

// controller is that of a class; "" for a class that is not ours.
func (l *lookup) controller(class string) gatewayv1.GatewayController {
	k := object.Key{Group: Group, Kind: GatewayClass, Name: class}
	l.read(k)
	controller := gatewaydeploy.ClassController(class)
	if o := l.objects[k]; o != nil {
		controller = o.Body.(*gatewayv1.GatewayClass).Spec.ControllerName
	}
	if !gatewaydeploy.Ours(controller) {
		return ""
	}
	return controller
}

// judgeClass makes the status of a GatewayClass.
func (s *State) judgeClass(k object.Key) {
	o := s.objects[k]
	if o == nil {
		s.lookup(k).done()
		s.emit(k, nil, nil)
		return
	}
	spec := &o.Body.(*gatewayv1.GatewayClass).Spec
	if !gatewaydeploy.Ours(spec.ControllerName) {
		s.lookup(k).done()
		s.emit(k, nil, nil)
		return
	}
	status := &gatewayv1.GatewayClassStatus{SupportedFeatures: gatewayFeatures}
	accepted := condition(o.Generation, string(gatewayv1.GatewayClassConditionStatusAccepted), true,
		string(gatewayv1.GatewayClassReasonAccepted), "the class is served")
	l := s.lookup(k)
	if why := l.classParameters(k.Name, spec); why != "" {
		accepted = condition(o.Generation, accepted.Type, false, string(gatewayv1.GatewayClassReasonInvalidParameters),
			object.Cut(why, maxMessage))
	}
	l.done()
	status.Conditions = append(status.Conditions, accepted)
	s.emit(k, nil, &Status{Class: status})
}

// classParameters says what is wrong with the parameters of a class; "" if nothing is.
func (l *lookup) classParameters(class string, spec *gatewayv1.GatewayClassSpec) string {
	if spec.ParametersRef != nil {
		return "spec.parametersRef is not supported; give defaults in a ConfigMap of namespace " + l.cfg.MeshNamespace +
			" that has the label " + gatewaydeploy.DefaultsLabel + ": " + class
	}
	if n := l.classDefaults(class); n != (Name{}) && gatewaydeploy.Managed(spec.ControllerName) {
		if err := l.overlays(n); err != nil {
			return err.Error()
		}
	}
	return ""
}
