// Package input is how translators read the mesh. A Reader answers in Istio's terms (visibility, precedence, selection)
// for one class of proxies, and records every look-up, also one without a result, so that the engine knows when to
// build again.
package input

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Reader answers one build's questions for a class at one revision. It is not safe for concurrent use. The caller must
// not change what it returns.
type Reader struct {
	view  *View
	deps  mesh.Topics
	scope Scope
	trace *Trace
}

// Class returns the part of the class that proxies of other namespaces and workloads may share. To read it leaves the
// result in the mesh scope.
func (r *Reader) Class() class.Common { return r.view.common }

// Scope says for which classes a result holds.
type Scope uint8

// Scopes, from the widest to the narrowest.
const (
	// MeshScope: only Class was read of the class; the result holds in all namespaces.
	MeshScope Scope = iota
	// NamespaceScope: the client's namespace or its Sidecar was read.
	NamespaceScope
	// WorkloadScope: something was read that only the one workload has.
	WorkloadScope
)

// Namespace returns the client's namespace. A result for which it was read is not shared between namespaces.
func (r *Reader) Namespace() string { return r.keyIn(NamespaceScope).Namespace }

// IsOwnNamespace reports whether a namespace is the client's. The answer is no for all other namespaces, so the result
// is shared by all but the clients of that namespace.
func (r *Reader) IsOwnNamespace(namespace string) bool {
	r.record(mesh.OwnNamespaceTopic(namespace))
	return namespace != mesh.Global && namespace == r.client()
}

// DNSDomain returns the proxy's DNS domain, for example "default.svc.cluster.local". A result for which it was read is
// not shared between namespaces.
func (r *Reader) DNSDomain() string { return r.keyIn(NamespaceScope).DNSDomain }

// Labels returns the class's relevant labels. A result for which they were read is not shared between workloads; the
// same holds for the methods below that read the WorkloadScope.
func (r *Reader) Labels() map[string]string { return r.keyIn(WorkloadScope).Labels }

// Targets lists the service ports whose endpoints include the workload.
func (r *Reader) Targets() []class.Target { return r.keyIn(WorkloadScope).Targets }

// Addresses returns the workload's addresses if listeners are bound to them.
func (r *Reader) Addresses() []string { return r.keyIn(WorkloadScope).Addresses }

// GatewayTopology returns the gateway topology of the proxy's own ProxyConfig, with the mesh's as defaults.
func (r *Reader) GatewayTopology() *meshv1alpha1.Topology {
	return r.keyIn(WorkloadScope).GatewayTopology.WithDefaults(r.Mesh().GetDefaultConfig().GetGatewayTopology())
}

// ProxyHeaders returns the proxy headers of the proxy's own ProxyConfig, with the mesh's as defaults.
func (r *Reader) ProxyHeaders() *meshv1alpha1.ProxyConfig_ProxyHeaders {
	return r.Class().ProxyHeaders.WithDefaults(r.Mesh().GetDefaultConfig().GetProxyHeaders())
}

// OffersMTLS reports whether callers of the proxyless gRPC workload are told to use mesh mTLS.
func (r *Reader) OffersMTLS() bool { return r.keyIn(WorkloadScope).OffersMTLS }

// keyIn returns the class's key and narrows the scope of the result.
func (r *Reader) keyIn(scope Scope) *class.Key {
	r.scope = max(r.scope, scope)
	return r.view.key
}

// Scope says for which classes the same was read.
func (r *Reader) Scope() Scope { return r.scope }

// Dependencies returns the topics recorded so far.
func (r *Reader) Dependencies() mesh.Topics { return r.deps }

// client is the namespace whose view of the mesh is read. It does not narrow the scope: mesh.Snapshot.Private tells the
// engine which topics have another answer in a namespace.
func (r *Reader) client() string { return r.view.key.Namespace }

func (r *Reader) record(topics ...mesh.Topic) {
	for _, t := range topics {
		r.deps.Add(t)
	}
}

// Mesh returns the mesh-wide settings; never nil.
func (r *Reader) Mesh() *meshv1alpha1.MeshConfig {
	r.record(mesh.SettingsTopic())
	r.trace.mesh(r.view.State())
	return r.view.State().Mesh()
}

// VirtualServices lists, oldest first, the VirtualServices that the class sees and that are bound to the gateway,
// "mesh" or "<namespace>/<name>". For "mesh", those with no host that the Sidecar admits are left out.
func (r *Reader) VirtualServices(gateway string) []*mesh.VirtualService {
	return derive(r, mesh.Topic{Subject: subjectRoutes, A: gateway}, func(r *Reader) []*mesh.VirtualService {
		r.record(mesh.VirtualServicesTopics(r.client(), gateway)...)
		return r.admitted(gateway, r.view.State().VirtualServices(r.client(), gateway))
	}, slices.Equal)
}

// OpaqueRoutes lists those of VirtualServices("mesh") that have TCP or TLS routes.
func (r *Reader) OpaqueRoutes() []*mesh.VirtualService {
	return derive(r, mesh.Topic{Subject: subjectOpaqueRoutes}, func(r *Reader) []*mesh.VirtualService {
		return slices.DeleteFunc(slices.Clone(r.VirtualServices(contract.MeshGateway)), func(vs *mesh.VirtualService) bool {
			return len(vs.Spec.GetTcp()) == 0 && len(vs.Spec.GetTls()) == 0
		})
	}, slices.Equal)
}

// VirtualServicesOf lists those of VirtualServices that have a host equal to hostname or a wildcard that matches it:
// the most specific host first, then the oldest. It depends on far fewer topics than VirtualServices.
func (r *Reader) VirtualServicesOf(gateway, hostname string) []*mesh.VirtualService {
	r.record(mesh.VirtualServicesOfTopics(gateway, hostname)...)
	return r.admitted(gateway, r.view.State().VirtualServicesOf(r.client(), gateway, hostname))
}

// admitted leaves out the VirtualServices that the Sidecar does not admit.
func (r *Reader) admitted(gateway string, found []*mesh.VirtualService) []*mesh.VirtualService {
	if gateway == contract.MeshGateway {
		found = r.egress().virtualServices(found)
	}
	return found
}

// IsTraced reports whether the build is traced. Uses has no effect otherwise.
func (r *Reader) IsTraced() bool { return r.trace != nil }

// Uses records for a Trace that the resource depends on a VirtualService. To look at one does not record it.
func (r *Reader) Uses(vs *mesh.VirtualService) { traceOne(r.trace, vs) }

// Sidecar returns the Sidecar that applies to the class, nil if none does.
func (r *Reader) Sidecar() *mesh.Sidecar {
	namespace, name, ok := strings.Cut(r.view.key.Sidecar, "/")
	if !ok {
		return nil
	}
	r.keyIn(NamespaceScope)
	r.record(mesh.SidecarNamedTopic(namespace))
	found := r.view.State().SidecarNamed(namespace, name)
	traceOne(r.trace, found)
	return found
}

// MeshGateways reports whether any Gateway of the mesh has a server that passes mesh TLS through. The answer is the
// same for all classes; in most meshes it is no, and no further question is needed.
func (r *Reader) MeshGateways() bool {
	r.record(mesh.AutoPassthroughTopic())
	return r.view.State().MeshGateways()
}

// NetworkGateways lists, sorted, the addresses at which other networks enter a network, for endpoints in a cluster.
func (r *Reader) NetworkGateways(network, cluster string) []mesh.NetworkGateway {
	r.record(mesh.NetworkGatewaysTopic(network))
	return r.view.State().NetworkGateways(network, cluster)
}

// IsGateway reports whether the class is a router's that a Gateway with a selector selects, or one of the Gateway API.
func (r *Reader) IsGateway() bool {
	return slices.ContainsFunc(r.Gateways(), mesh.Selective) || len(r.GatewayListeners()) > 0
}

// Gateways lists the Gateways that select the class, oldest first; nil for sidecars.
func (r *Reader) Gateways() []*mesh.Gateway {
	return derive(r, mesh.Topic{Subject: subjectGateways}, func(r *Reader) []*mesh.Gateway {
		if r.Class().Type != class.Router {
			return nil
		}
		r.record(mesh.GatewaysTopics(r.Labels())...)
		found := r.view.State().Gateways(r.Namespace(), r.Labels())
		traceAll(r.trace, found)
		return found
	}, slices.Equal)
}
