package normalise

import (
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Istio's label of the Services of east-west gateways, and the port of a Service without it.
const (
	labelGatewayPort   = "networking.istio.io/gatewayPort"
	networkGatewayPort = 15443
)

// networkGateway is the east-west gateway that a Service with a network label is; nil for other Services and while it
// has no external IP. Host names of load balancers do not count: endpoints need IP addresses.
func networkGateway(o *object.Object, s *corev1.Service) *configv1.NetworkGateway {
	network := o.Labels[labelNetwork]
	if network == "" {
		return nil
	}
	out := &configv1.NetworkGateway{Network: network, Port: networkGatewayPort}
	if port, err := strconv.ParseUint(o.Labels[labelGatewayPort], 10, 16); err == nil && port > 0 {
		out.Port = uint32(port)
	}
	texts := append([]string{}, s.Spec.ExternalIPs...)
	for _, in := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, in.IP)
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
			out.Addresses = append(out.Addresses, ip.String())
		}
	}
	if out.Addresses = sortedUnique(out.Addresses); len(out.Addresses) == 0 {
		return nil
	}
	return out
}
