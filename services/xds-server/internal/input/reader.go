// Package input is a translator's only window on the mesh. It answers in Istio's terms (visibility, precedence, selection) for one class
// of proxies, and records every look-up, those without a result too, so that the engine knows when the answer may be another one.
package input

import (
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/replica"
)

// meshGateway is the reserved gateway name that means every sidecar.
const meshGateway = "mesh"

// Reader answers for one class at one revision, during one build. It is not safe for concurrent use. What it returns is shared and must
// not be changed.
type Reader struct {
	view *View
	deps replica.Topics
}

// Class returns the class that is built for.
func (r *Reader) Class() *class.Key { return r.view.key }

// Dependencies returns the topics recorded so far.
func (r *Reader) Dependencies() replica.Topics { return r.deps }

func (r *Reader) record(topics ...replica.Topic) {
	for _, t := range topics {
		r.deps.Add(t)
	}
}

// Mesh returns the mesh-wide settings; never nil.
func (r *Reader) Mesh() *meshv1alpha1.MeshConfig {
	r.record(replica.MeshTopic())
	return r.view.state.Mesh()
}

// VirtualServices lists the VirtualServices visible to the class and bound to the gateway, "mesh" or "<namespace>/<name>", oldest first.
// For "mesh" those are left out whose hosts the Sidecar does not admit.
func (r *Reader) VirtualServices(gateway string) []*replica.VirtualService {
	return derive(r, replica.Topic{Subject: subjectRoutes, A: gateway}, func(r *Reader) []*replica.VirtualService {
		ns := r.Class().Namespace
		r.record(replica.VirtualServicesTopics(ns, gateway)...)
		return r.admitted(gateway, r.view.state.VirtualServices(ns, gateway))
	}, slices.Equal)
}

// VirtualServicesOf lists those of VirtualServices that have a host equal to hostname or a wildcard that covers it, the most specific
// host first, then oldest first. It depends on much less than VirtualServices does.
func (r *Reader) VirtualServicesOf(gateway, hostname string) []*replica.VirtualService {
	r.record(replica.VirtualServicesOfTopics(gateway, hostname)...)
	return r.admitted(gateway, r.view.state.VirtualServicesOf(r.Class().Namespace, gateway, hostname))
}

func (r *Reader) admitted(gateway string, found []*replica.VirtualService) []*replica.VirtualService {
	if gateway != meshGateway {
		return found
	}
	return r.egress().virtualServices(found)
}

// Sidecar returns the Sidecar that applies to the class, nil if none does: one of its namespace that selects it, else its namespace's
// without a selector, else the root namespace's; the oldest where several qualify. Routers have none.
func (r *Reader) Sidecar() *replica.Sidecar {
	return derive(r, replica.Topic{Subject: subjectSidecar}, findSidecar, identical)
}

func findSidecar(r *Reader) *replica.Sidecar {
	key := r.Class()
	if key.Type != class.Sidecar {
		return nil
	}
	r.record(replica.SidecarsTopic(key.Namespace))
	var byDefault *replica.Sidecar
	for _, s := range r.view.state.Sidecars(key.Namespace) {
		selector := s.Spec.GetWorkloadSelector().GetLabels()
		switch {
		case len(selector) == 0:
			if byDefault == nil {
				byDefault = s
			}
		case replica.Matches(selector, key.Labels):
			return s
		}
	}
	root := r.Mesh().GetRootNamespace()
	if byDefault != nil || root == key.Namespace {
		return byDefault
	}
	r.record(replica.SidecarsTopic(root))
	for _, s := range r.view.state.Sidecars(root) {
		if len(s.Spec.GetWorkloadSelector().GetLabels()) == 0 {
			return s
		}
	}
	return nil
}

// Gateways lists the Gateways that select the class, oldest first; nil for sidecars.
func (r *Reader) Gateways() []*replica.Gateway {
	return derive(r, replica.Topic{Subject: subjectGateways}, func(r *Reader) []*replica.Gateway {
		if r.Class().Type != class.Router {
			return nil
		}
		r.record(replica.GatewaysTopics(r.Class().Labels)...)
		return r.view.state.Gateways(r.Class().Labels)
	}, slices.Equal)
}
