package gatewaydeploy

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Controllers, in spec.controllerName, of the GatewayClasses whose Gateways are the mesh's. Istio's names mean this
// mesh, so that Istio's Gateways need no change.
const (
	// IstioController and FairleadController are those whose Gateways are deployed.
	IstioController    gatewayv1.GatewayController = "istio.io/gateway-controller"
	FairleadController gatewayv1.GatewayController = "fairlead.dev/gateway-controller"
	// UnmanagedController is that of Gateways elsewhere, of class istio-remote: nothing is made for them.
	UnmanagedController gatewayv1.GatewayController = "istio.io/unmanaged-gateway"
	// MeshController is that in the status of routes that are attached to a Service, as in Istio.
	MeshController = IstioController
)

// Ours reports whether the Gateways of a class with this controllerName are the mesh's.
func Ours(controller gatewayv1.GatewayController) bool {
	return Managed(controller) || controller == UnmanagedController
}

// Managed reports whether Gateways of a class with this controllerName are deployed.
func Managed(controller gatewayv1.GatewayController) bool {
	return controller == IstioController || controller == FairleadController
}

// Class is a GatewayClass that every mesh has. config-watcher makes those that an API server lacks; elsewhere they are
// there without an object.
type Class struct {
	Name        string
	Controller  gatewayv1.GatewayController
	Description string
}

// Classes are Istio's but for waypoints, and fairlead.
func Classes() []Class {
	return []Class{
		{"istio", IstioController, "Served by the mesh, with a deployment for each Gateway"},
		{"fairlead", FairleadController, "Served by the mesh, with a deployment for each Gateway"},
		{"istio-remote", UnmanagedController, "For Gateways whose workloads are in another cluster"},
	}
}

// ClassController is the controller of a class that every mesh has; "" for another.
func ClassController(class string) gatewayv1.GatewayController {
	all := Classes()
	if i := slices.IndexFunc(all, func(c Class) bool { return c.Name == class }); i >= 0 {
		return all[i].Controller
	}
	return ""
}
