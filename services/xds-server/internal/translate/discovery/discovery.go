// Package discovery decides how a cluster finds its endpoints. Clusters, endpoints and listeners are built from the same answer, so that no
// cluster waits for an assignment that nobody builds.
package discovery

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
)

// Kind is a way to find endpoints.
type Kind int

// Kinds of discovery.
const (
	// EDS: the control plane lists them.
	EDS Kind = iota + 1
	// StrictDNS: the proxy resolves names and uses all addresses.
	StrictDNS
	// LogicalDNS: the proxy resolves one name and uses the first address of each answer.
	LogicalDNS
	// OriginalDestination: the proxy connects to where the client wanted to.
	OriginalDestination
	// DynamicHosts: the proxy resolves the name that each request or TLS handshake asks for.
	DynamicHosts
)

// Cluster is an outbound cluster with all that decides what it looks like.
type Cluster struct {
	names.Cluster
	Kind    Kind
	Service *configv1.Service
	Spec    *configv1.ServicePort
	// Rule is the DestinationRule that applies, or nil; Subset is the cluster's, or nil.
	Rule   *mesh.DestinationRule
	Labels *networking.Subset
	// Policy is the resolved traffic policy, never nil.
	Policy *networking.TrafficPolicy
}

// Resolve finds what an outbound cluster name stands for; ok is false if the class has no such cluster.
func Resolve(r *input.Reader, name names.Cluster) (c Cluster, ok bool) {
	svc := r.Service(name.Hostname)
	port := Port(svc, name.Port)
	if port == nil || name.Passthrough && !passesMesh(r, svc) {
		return Cluster{}, false
	}
	c = Cluster{Cluster: name, Service: svc, Spec: port, Rule: r.DestinationRule(name.Hostname)}
	if c.Rule != nil {
		c.Labels = policy.Subset(c.Rule.Spec, name.Subset)
		c.Policy = policy.For(c.Rule.Spec, c.Labels, name.Port)
	} else {
		c.Policy = &networking.TrafficPolicy{}
	}
	if name.Subset != "" && c.Labels == nil {
		return Cluster{}, false
	}
	c.Policy = policy.WithAffinity(policy.WithDefaults(c.Policy, r.Mesh()), svc)
	c.Kind = kind(r.Class(), svc, c.Policy)
	return c, true
}

// Names lists the clusters of a service, sorted: one per port, and one per port and subset, and each once more on a gateway that passes mesh
// TLS through to the service.
func Names(r *input.Reader, host string) []string {
	svc := r.Service(host)
	if svc == nil {
		return nil
	}
	rule := r.DestinationRule(host)
	passes := passesMesh(r, svc)
	var out []string
	add := func(port uint32, subset string) {
		out = append(out, names.Outbound(port, subset, host))
		if passes {
			out = append(out, names.SNI(port, subset, host))
		}
	}
	for _, port := range svc.GetPorts() {
		if !protocol.IsProxied(port.GetProtocol()) {
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

// passesMesh tells whether the class is a gateway that passes mesh TLS through to the service.
func passesMesh(r *input.Reader, svc *configv1.Service) bool {
	return r.Class().Type == class.Router && r.MeshGateways() && gateway.PassesMeshTo(r, svc)
}

func subsets(rule *mesh.DestinationRule) []*networking.Subset {
	if rule == nil {
		return nil
	}
	return rule.Spec.GetSubsets()
}

// Port returns the service's port of that number, or nil. Of several, as DNS has them, it is the first that is proxied.
func Port(svc *configv1.Service, number uint32) *configv1.ServicePort {
	for _, port := range svc.GetPorts() {
		if port.GetNumber() == number && protocol.IsProxied(port.GetProtocol()) {
			return port
		}
	}
	return nil
}

func kind(key class.Common, svc *configv1.Service, applied *networking.TrafficPolicy) Kind {
	// Only captured connections have an original destination.
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
