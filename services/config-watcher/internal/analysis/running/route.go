package running

import (
	"fmt"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// parentsOf are the parents of a route of the Gateway API.
func parentsOf(o *object.Object) []gatewayv1.ParentReference {
	switch b := o.Body.(type) {
	case *gatewayv1.HTTPRoute:
		return b.Spec.ParentRefs
	case *gatewayv1.GRPCRoute:
		return b.Spec.ParentRefs
	case *gatewayv1.TLSRoute:
		return b.Spec.ParentRefs
	case *gatewayv1.TCPRoute:
		return b.Spec.ParentRefs
	}
	return nil
}

// checkServiceRoute finds routes of the Gateway API for a Service whose host a VirtualService of the mesh has: that
// wins, wherever it is visible.
func checkServiceRoute(r *reader) {
	for i, p := range parentsOf(r.object) {
		if p.Kind == nil || *p.Kind != "Service" || p.Group != nil && *p.Group != "" {
			continue
		}
		namespace := r.namespace()
		if p.Namespace != nil {
			namespace = string(*p.Namespace)
		}
		host := normalise.Host(string(p.Name), namespace, r.mesh.domain)
		for _, o := range r.routes(contract.MeshGateway, host) {
			// A route in the namespace of its Service is for all clients, and another one for those of its own
			// namespace.
			to := r.exported(o)
			if namespace != r.namespace() && !normalise.VisibleTo(to, r.namespace()) {
				continue
			}
			r.report(finding.RouteShadowed, fmt.Sprintf("spec.parentRefs[%d]", i), string(p.Name),
				fmt.Sprintf("VirtualService %s/%s has the host %s, and routes the requests of every client that sees it", o.Key.Namespace, o.Key.Name,
					host), "remove the VirtualService's host, or the parent")
			break
		}
	}
}
