// Package input is a translator's only window on the mesh. It answers in Istio's terms (visibility, precedence, selection) for one class
// of proxies, and records every look-up, those without a result too, so that the engine knows when the answer may be another one.
package input

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Reader answers for one class at one revision, during one build. It is not safe for concurrent use. What it returns is shared and must
// not be changed.
type Reader struct {
	view  *View
	deps  mesh.Topics
	scope Scope
	trace *Trace
}

// Class returns what the class may have in common with classes of other namespaces and workloads.
func (r *Reader) Class() class.Common { return r.view.common }

// Scope says for how many classes a result holds.
type Scope uint8

// Reaches, from all to one.
const (
	// MeshScope: nothing but the common part of the class was read.
	MeshScope Scope = iota
	// NamespaceScope: the client's namespace was read, or its Sidecar.
	NamespaceScope
	// WorkloadScope: what only the one workload has was read.
	WorkloadScope
)

// Namespace returns the client's namespace. A result that was made from it is not shared between namespaces.
func (r *Reader) Namespace() string { return r.only(NamespaceScope).Namespace }

// IsOwnNamespace reports whether a namespace is the client's. For all others the answer is no, so that a result which only asks this holds
// for everybody but the clients of the namespace asked for.
func (r *Reader) IsOwnNamespace(namespace string) bool {
	r.record(mesh.OwnNamespaceTopic(namespace))
	return namespace != mesh.Global && namespace == r.client()
}

// DNSDomain returns the proxy's DNS domain, "default.svc.cluster.local". A result that was made from it is not shared between namespaces.
func (r *Reader) DNSDomain() string { return r.only(NamespaceScope).DNSDomain }

// Labels returns the labels that some selector tests. A result that was made from them, or from what the following return, is not shared
// between workloads.
func (r *Reader) Labels() map[string]string { return r.only(WorkloadScope).Labels }

// Targets returns the service ports that lead to the workload.
func (r *Reader) Targets() []class.Target { return r.only(WorkloadScope).Targets }

// Addresses returns the workload's addresses where listeners are bound to them.
func (r *Reader) Addresses() []string { return r.only(WorkloadScope).Addresses }

// GatewayTopology returns what the proxy's own ProxyConfig says of proxies in front of a gateway, over what the mesh says for all.
func (r *Reader) GatewayTopology() *meshv1alpha1.Topology {
	return r.only(WorkloadScope).GatewayTopology.Over(r.Mesh().GetDefaultConfig().GetGatewayTopology())
}

// ProxyHeaders returns what is said of the headers that proxies add: by the proxy's own ProxyConfig, over what the mesh says for all.
func (r *Reader) ProxyHeaders() *meshv1alpha1.ProxyConfig_ProxyHeaders {
	return r.Class().ProxyHeaders.Over(r.Mesh().GetDefaultConfig().GetProxyHeaders())
}

// OffersMTLS reports whether callers of the workload are told to use mesh mTLS.
func (r *Reader) OffersMTLS() bool { return r.only(WorkloadScope).OffersMTLS }

func (r *Reader) only(scope Scope) *class.Key {
	r.scope = max(r.scope, scope)
	return r.view.key
}

// Reach says for which classes what was read is the same.
func (r *Reader) Scope() Scope { return r.scope }

// Dependencies returns the topics recorded so far.
func (r *Reader) Dependencies() mesh.Topics { return r.deps }

// client is the namespace that questions are asked for. Which answers depend on it, mesh.State.Private knows.
func (r *Reader) client() string { return r.view.key.Namespace }

func (r *Reader) record(topics ...mesh.Topic) {
	for _, t := range topics {
		r.deps.Add(t)
	}
}

// Mesh returns the mesh-wide settings; never nil.
func (r *Reader) Mesh() *meshv1alpha1.MeshConfig {
	r.record(mesh.MeshTopic())
	r.trace.mesh(r.view.state)
	return r.view.state.Mesh()
}

// VirtualServices lists the VirtualServices visible to the class and bound to the gateway, "mesh" or "<namespace>/<name>", oldest first.
// For "mesh" those are left out whose hosts the Sidecar does not admit.
func (r *Reader) VirtualServices(gateway string) []*mesh.VirtualService {
	return derive(r, mesh.Topic{Subject: subjectRoutes, A: gateway}, func(r *Reader) []*mesh.VirtualService {
		r.record(mesh.VirtualServicesTopics(r.client(), gateway)...)
		return r.admitted(gateway, r.view.state.VirtualServices(r.client(), gateway))
	}, slices.Equal)
}

// OpaqueRoutes lists those of VirtualServices("mesh") that have routes for bytes other than HTTP.
func (r *Reader) OpaqueRoutes() []*mesh.VirtualService {
	return derive(r, mesh.Topic{Subject: subjectOpaqueRoutes}, func(r *Reader) []*mesh.VirtualService {
		return slices.DeleteFunc(slices.Clone(r.VirtualServices(contract.MeshGateway)), func(vs *mesh.VirtualService) bool {
			return len(vs.Spec.GetTcp()) == 0 && len(vs.Spec.GetTls()) == 0
		})
	}, slices.Equal)
}

// VirtualServicesOf lists those of VirtualServices that have a host equal to hostname or a wildcard that covers it, the most specific
// host first, then oldest first. It depends on much less than VirtualServices does.
func (r *Reader) VirtualServicesOf(gateway, hostname string) []*mesh.VirtualService {
	r.record(mesh.VirtualServicesOfTopics(gateway, hostname)...)
	return r.admitted(gateway, r.view.state.VirtualServicesOf(r.client(), gateway, hostname))
}

func (r *Reader) admitted(gateway string, found []*mesh.VirtualService) []*mesh.VirtualService {
	if gateway == contract.MeshGateway {
		found = r.egress().virtualServices(found)
	}
	return found
}

// IsTraced reports whether somebody asks why: Uses means nothing otherwise.
func (r *Reader) IsTraced() bool { return r.trace != nil }

// Uses notes, for people who ask why, that a VirtualService has a part in what is built. One that was only looked at has none.
func (r *Reader) Uses(vs *mesh.VirtualService) { traceOne(r.trace, vs) }

// Sidecar returns the Sidecar that applies to the class, nil if none does.
func (r *Reader) Sidecar() *mesh.Sidecar {
	namespace, name, ok := strings.Cut(r.view.key.Sidecar, "/")
	if !ok {
		return nil
	}
	r.only(NamespaceScope)
	r.record(mesh.SidecarNamedTopic(namespace))
	found := r.view.state.SidecarNamed(namespace, name)
	traceOne(r.trace, found)
	return found
}

// MeshGateways reports whether any Gateway of the mesh has a server that passes mesh TLS through. It holds for everybody, and saves most
// meshes the question which Gateways those are.
func (r *Reader) MeshGateways() bool {
	r.record(mesh.MeshGatewaysTopic())
	return r.view.state.MeshGateways()
}

// NetworkGateways lists the addresses where a network is entered from others, sorted.
func (r *Reader) NetworkGateways(network string) []mesh.NetworkGateway {
	r.record(mesh.NetworkGatewaysTopic(network))
	return r.view.state.NetworkGateways(network)
}

// IsGateway reports whether the class is of a router that a Gateway with a selector selects.
func (r *Reader) IsGateway() bool {
	return slices.ContainsFunc(r.Gateways(), mesh.Selective)
}

// Gateways lists the Gateways that select the class, oldest first; nil for sidecars.
func (r *Reader) Gateways() []*mesh.Gateway {
	return derive(r, mesh.Topic{Subject: subjectGateways}, func(r *Reader) []*mesh.Gateway {
		if r.Class().Type != class.Router {
			return nil
		}
		r.record(mesh.GatewaysTopics(r.Labels())...)
		found := r.view.state.Gateways(r.Labels())
		traceAll(r.trace, found)
		return found
	}, slices.Equal)
}
