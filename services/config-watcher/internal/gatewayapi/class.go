package gatewayapi

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Controllers of classes that are served.
const (
	ControllerIstio    = "istio.io/gateway-controller"
	ControllerFairlead = "fairlead.dev/gateway-controller"
	// ControllerUnmanaged is that of Gateways whose workloads are in another cluster.
	ControllerUnmanaged = "istio.io/unmanaged-gateway"
)

// ControllerMesh is the controller of the status of routes that are attached to a Service, as in Istio.
const ControllerMesh = ControllerIstio

// Classes are the controllers of the classes that exist without a GatewayClass, such as in files.
var Classes = map[string]string{"istio": ControllerIstio, "fairlead": ControllerFairlead, "istio-remote": ControllerUnmanaged}

func ours(controller string) bool {
	return controller == ControllerIstio || controller == ControllerFairlead || controller == ControllerUnmanaged
}

// controller is that of a class; "" for a class that is not ours.
func (l *lookup) controller(class string) string {
	k := object.Key{Group: Group, Kind: GatewayClass, Name: class}
	l.read(k)
	controller := Classes[class]
	if o := l.objects[k]; o != nil {
		controller = string(o.Body.(*gatewayv1.GatewayClass).Spec.ControllerName)
	}
	if !ours(controller) {
		return ""
	}
	return controller
}

// judgeClass makes the status of a GatewayClass.
func (s *State) judgeClass(k object.Key) {
	o := s.objects[k]
	if o == nil {
		s.emit(k, nil, nil)
		return
	}
	spec := &o.Body.(*gatewayv1.GatewayClass).Spec
	if !ours(string(spec.ControllerName)) {
		s.emit(k, nil, nil)
		return
	}
	status := &gatewayv1.GatewayClassStatus{SupportedFeatures: supportedFeatures}
	accepted := condition(o.Generation, string(gatewayv1.GatewayClassConditionStatusAccepted), true,
		string(gatewayv1.GatewayClassReasonAccepted), "the class is served")
	if spec.ParametersRef != nil {
		accepted = condition(o.Generation, accepted.Type, false, string(gatewayv1.GatewayClassReasonInvalidParameters),
			"spec.parametersRef is not supported; give defaults in a ConfigMap of namespace "+s.cfg.MeshNamespace+
				" that has the label gateway.istio.io/defaults-for-class")
	}
	status.Conditions = append(status.Conditions, accepted)
	s.emit(k, nil, &Status{Class: status})
}
