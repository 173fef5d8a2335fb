// Package networking has the rules of the kinds of group networking.istio.io, a file a kind, and those of the settings
// that a mesh configuration has as well.
package networking

import (
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
)

// Checker checks one object, or a mesh configuration.
type Checker struct{ *check.Checker }

// Check applies the rules of the object's kind.
func Check(base *check.Checker, o *object.Object) {
	c := Checker{base}
	switch b := o.Body.(type) {
	case *networking.VirtualService:
		c.virtualService(b)
	case *networking.DestinationRule:
		c.destinationRule(b)
	case *networking.Gateway:
		c.gateway(o, b)
	case *networking.Sidecar:
		c.sidecar(b)
	case *networking.ServiceEntry:
		c.serviceEntry(o, b)
	case *networking.WorkloadEntry:
		ondemand.Annotations(c.Verdict, o)
		c.workloadEntry("spec", b, false)
	case *networking.WorkloadGroup:
		c.workloadGroup(b)
	case *networking.EnvoyFilter:
		c.envoyFilter(b)
	case *networkingv1beta1.ProxyConfig:
		c.proxyConfig(b)
	}
}
