// Package discovery resolves the name of an outbound cluster to its service port, subset, traffic policy and discovery
// type (Resolve), and lists the clusters of a service (Names). Packages cluster, endpoint and proxyless build from the
// same answer, so no cluster waits for a load assignment that does not exist.
package discovery

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

// Kind is the cluster discovery type: how a cluster finds its endpoints.
type Kind int

// Discovery types.
const (
	// EDS: xds-server sends the endpoints.
	EDS Kind = iota + 1
	// StrictDNS: the proxy resolves DNS names and uses all their addresses.
	StrictDNS
	// LogicalDNS: the proxy resolves one DNS name and uses the first address of each answer.
	LogicalDNS
	// OriginalDestination: the proxy connects to the address that the client connected to.
	OriginalDestination
	// DynamicHosts: the proxy resolves the host of each request or the SNI of each TLS handshake, see package
	// dynamicforwardproxy.
	DynamicHosts
)

// Cluster is an outbound cluster with everything that its configuration depends on.
type Cluster struct {
	resourcename.Cluster
	Kind    Kind
	Service *configv1.Service
	Spec    *configv1.ServicePort
	// Rule is the DestinationRule that applies, or nil; SubsetSpec is its subset of the cluster, or nil.
	Rule       *mesh.DestinationRule
	SubsetSpec *networking.Subset
	// Policy is the traffic policy that applies; never nil.
	Policy *networking.TrafficPolicy
}

// Resolve returns the cluster of a name; ok is false if the class has no such cluster.
func Resolve(r *input.Reader, name resourcename.Cluster) (c Cluster, ok bool) {
	var svc *configv1.Service
	if name.Subset == "" && !name.AutoPassthrough {
		svc = r.Provided(name.Hostname, name.Port)
	}
	if svc == nil {
		svc = r.Service(name.Hostname)
	}
	port := Port(svc, name.Port)
	if port == nil {
		port = udpPort(r, svc, name.Port)
	}
	if port == nil || name.AutoPassthrough && !isAutoPassthrough(r, svc) {
		return Cluster{}, false
	}
	c = Cluster{Cluster: name, Service: svc, Spec: port, Rule: r.DestinationRule(name.Hostname)}
	if c.Rule != nil {
		c.SubsetSpec = trafficpolicy.Subset(c.Rule.Spec, name.Subset)
		c.Policy = trafficpolicy.For(c.Rule.Spec, c.SubsetSpec, name.Port)
	} else {
		c.Policy = &networking.TrafficPolicy{}
	}
	if name.Subset != "" && c.SubsetSpec == nil {
		return Cluster{}, false
	}
	c.Policy = trafficpolicy.WithAffinity(trafficpolicy.WithDefaults(c.Policy, r.Mesh()), svc)
	c.Kind = kind(r.Class(), svc, c.Policy)
	return c, true
}

// Names lists the clusters of a service, sorted: one per port (of UDP only for a gateway, if a UDPRoute sends to the
// service), one per port and subset, and for a gateway with an AUTO_PASSTHROUGH server for the service each of these
// once more, named by SNI.
func Names(r *input.Reader, host string) []string {
	svc := r.Service(host)
	if svc == nil {
		return nil
	}
	rule := r.DestinationRule(host)
	passes := isAutoPassthrough(r, svc)
	var out []string
	add := func(port uint32, subset string) {
		out = append(out, resourcename.OutboundCluster(port, subset, host))
		if passes {
			out = append(out, resourcename.SNI(port, subset, host))
		}
	}
	for _, port := range svc.GetPorts() {
		if !protocol.IsProxied(port.GetProtocol()) && udpPort(r, svc, port.GetNumber()) == nil {
			continue
		}
		add(port.GetNumber(), "")
		for _, subset := range subsets(rule) {
			add(port.GetNumber(), subset.GetName())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isAutoPassthrough reports whether the class is a gateway with an AUTO_PASSTHROUGH server for the service.
func isAutoPassthrough(r *input.Reader, svc *configv1.Service) bool {
	return r.Class().Type == class.Router && r.MeshGateways() && gateway.AutoPassthroughTo(r, svc)
}

func subsets(rule *mesh.DestinationRule) []*networking.Subset {
	if rule == nil {
		return nil
	}
	return rule.Spec.GetSubsets()
}

// Port returns the service's port of that number, or nil. Of several, such as TCP and UDP ports of DNS, it returns the
// first that is proxied.
func Port(svc *configv1.Service, number uint32) *configv1.ServicePort {
	for _, port := range svc.GetPorts() {
		if port.GetNumber() == number && protocol.IsProxied(port.GetProtocol()) {
			return port
		}
	}
	return nil
}

// udpPort returns the service's UDP port of that number if a gateway sends UDP to the service, or nil.
func udpPort(r *input.Reader, svc *configv1.Service, number uint32) *configv1.ServicePort {
	for _, port := range svc.GetPorts() {
		if port.GetNumber() == number && !protocol.IsProxied(port.GetProtocol()) && r.IsUDPBackend(svc.GetHostname()) {
			return port
		}
	}
	return nil
}

func kind(key class.Common, svc *configv1.Service, applied *networking.TrafficPolicy) Kind {
	// Only redirected connections have an original destination.
	captured := key.Type == class.Sidecar && key.Interception != class.None
	if captured && applied.GetLoadBalancer().GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		return OriginalDestination
	}
	switch svc.GetResolution() {
	case configv1.Resolution_RESOLUTION_DNS:
		return StrictDNS
	case configv1.Resolution_RESOLUTION_DNS_ROUND_ROBIN:
		return LogicalDNS
	case configv1.Resolution_RESOLUTION_DYNAMIC_DNS:
		return DynamicHosts
	case configv1.Resolution_RESOLUTION_PASSTHROUGH:
		if captured {
			return OriginalDestination
		}
		return EDS
	default:
		return EDS
	}
}
