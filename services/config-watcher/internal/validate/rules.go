package validate

import (
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// rules applies the rules of the object's kind.
func (c *checker) rules(o *object.Object) {
	switch b := o.Body.(type) {
	case *networking.VirtualService:
		checkVirtualService(c, o, b)
	case *networking.DestinationRule:
		checkDestinationRule(c, o, b)
	case *networking.Gateway:
		checkGateway(c, o, b)
	case *networking.Sidecar:
		checkSidecar(c, o, b)
	case *networking.ServiceEntry:
		checkServiceEntry(c, o, b)
	case *networking.WorkloadEntry:
		checkWorkloadEntry(c, o, b)
	case *networking.WorkloadGroup:
		checkWorkloadGroup(c, o, b)
	case *networking.EnvoyFilter:
		checkEnvoyFilter(c, o, b)
	case *networkingv1beta1.ProxyConfig:
		checkProxyConfig(c, o, b)
	case *security.PeerAuthentication:
		checkPeerAuthentication(c, o, b)
	case *security.RequestAuthentication:
		c.unenforced(o, "tokens would not be verified")
	case *security.AuthorizationPolicy:
		c.unenforced(o, "access would not be restricted")
	case *telemetry.Telemetry:
		checkTelemetry(c, o, b)
	case *extensions.WasmPlugin:
		checkWasmPlugin(c, o, b)
	case *extensions.TrafficExtension:
		checkTrafficExtension(c, o, b)
	case *corev1.Service:
		checkService(c, o, b)
	case *object.Endpoints:
		checkEndpoints(c, o, b)
	case *corev1.Pod:
		checkPod(c, o, b)
	case *corev1.ConfigMap:
		checkConfigMap(c, o, b)
	case *corev1.Secret:
		checkSecret(c, o, b)
	case *discoveryv1.EndpointSlice:
		checkEndpointSlice(c, o, b)
	case *networkingv1.Ingress:
		checkIngress(c, o, b)
	case *networkingv1.IngressClass:
		checkIngressClass(c, o, b)
	case *object.IdentityBan:
		checkIdentityBan(c, o, b)
	}
}

// unenforced refuses every object of a policy kind: one that is stored but not enforced would only look like protection.
func (c *checker) unenforced(o *object.Object, consequence string) {
	c.fail("spec", nil, o.Key.Kind+" is not enforced by this version of Fairlead, "+consequence,
		"remove the object, or keep the workload out of reach by other means")
}
