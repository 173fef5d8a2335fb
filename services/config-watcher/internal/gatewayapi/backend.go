package gatewayapi

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// backends resolves the backends of a route.
type backends struct {
	*lookup
	route *object.Object
	// free is true if references to other namespaces need no grant: those of a route that is attached to Services
	// alone, as its clients can send to any Service by themselves.
	free bool
	// services that the route leads to.
	services []Name
	// unresolved is about the backends that cannot be resolved, with the reason of the first one; nil if all can.
	unresolved *finding
}

// resolve is a rule.Backends.
func (b *backends) resolve(ref *gatewayv1.BackendObjectReference) (host string, port uint32, ok bool) {
	fail := func(reason gatewayv1.RouteConditionReason, format string, args ...any) (string, uint32, bool) {
		message := fieldOf(b.route, ref) + ": " + fmt.Sprintf(format, args...)
		switch {
		case b.unresolved == nil:
			b.unresolved = &finding{string(reason), message}
		case len(b.unresolved.message) < maxMessage:
			b.unresolved.message += "; " + message
		}
		return "", 0, false
	}
	group, kind := "", service
	if ref.Group != nil {
		group = string(*ref.Group)
	}
	if ref.Kind != nil {
		kind = string(*ref.Kind)
	}
	if group == groupIstio && kind == kindHostname {
		if f := b.entryBackend(ref); f != nil {
			return fail(gatewayv1.RouteConditionReason(f.reason), "%s", f.message)
		}
		return strings.ToLower(string(ref.Name)), uint32(*ref.Port), true //nolint:gosec // a port
	}
	imported := group == groupMCS && kind == "ServiceImport"
	if !imported && (group != "" || kind != service) {
		return fail(gatewayv1.RouteReasonInvalidKind, "kind %s of group %q is not supported; use a Service", kind, group)
	}
	n := Name{Namespace: b.route.Key.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		n.Namespace = string(*ref.Namespace)
	}
	from := reference{b.route.Key.Kind, b.route.Key.Namespace}
	if !b.free && !b.granted(from, group, kind, n) {
		return fail(gatewayv1.RouteReasonRefNotPermitted, "%s", notGranted(kind, n, from.kind, from.namespace))
	}
	o := b.service(n)
	if o == nil || imported && (o.ClusterSet == nil || o.ClusterSet.Host == "") {
		return fail(gatewayv1.RouteReasonBackendNotFound, "there is no %s %s; create it, or name one that is there", kind, n)
	}
	spec := &o.Body.(*corev1.Service).Spec
	host = b.host(n)
	if imported {
		host = o.ClusterSet.Host
		if o.ClusterSet.Service != nil {
			spec = &o.ClusterSet.Service.Spec
		}
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return fail(gatewayv1.RouteReasonInvalidKind, "Service %s is of type ExternalName, which is not supported; name a ServiceEntry's host", n)
	}
	if ref.Port == nil {
		return fail(gatewayv1.RouteReasonBackendNotFound, "it has no port; name one of %s %s", kind, n)
	}
	other := false
	var there []string
	for _, p := range spec.Ports {
		if p.Port != *ref.Port {
			there = append(there, fmt.Sprint(p.Port))
			continue
		}
		if (p.Protocol == corev1.ProtocolUDP) == (from.kind == UDPRoute) {
			if !imported {
				b.services = append(b.services, n)
			}
			return host, uint32(p.Port), true //nolint:gosec // a port
		}
		other = true
	}
	if other {
		return fail(gatewayv1.RouteReasonUnsupportedProtocol, "port %d of Service %s is of another protocol than a %s", *ref.Port, n, from.kind)
	}
	return fail(gatewayv1.RouteReasonBackendNotFound, "%s %s has no port %d; it has %s", kind, n, *ref.Port,
		cmp.Or(strings.Join(there, ", "), "none"))
}

// fieldOf is the path of a backend in its route.
func fieldOf(route *object.Object, ref *gatewayv1.BackendObjectReference) (field string) {
	backend := func(rule, i int, r *gatewayv1.BackendObjectReference) string {
		at := fmt.Sprintf("spec.rules[%d].backendRefs[%d]", rule, i)
		if r == ref || field == "" && reflect.DeepEqual(r, ref) { // a GRPCRoute's is a copy
			field = at
		}
		return at
	}
	mirror := func(at string, i int, m *gatewayv1.HTTPRequestMirrorFilter) {
		if m != nil && &m.BackendRef == ref {
			field = fmt.Sprintf("%s.filters[%d].requestMirror.backendRef", at, i)
		}
	}
	plain := func(rule int, refs []gatewayv1.BackendRef) {
		for i := range refs {
			backend(rule, i, &refs[i].BackendObjectReference)
		}
	}
	switch body := route.Body.(type) {
	case *gatewayv1.HTTPRoute:
		for i, r := range body.Spec.Rules {
			for k, f := range r.Filters {
				mirror(fmt.Sprintf("spec.rules[%d]", i), k, f.RequestMirror)
			}
			for j := range r.BackendRefs {
				at := backend(i, j, &r.BackendRefs[j].BackendObjectReference)
				for k, f := range r.BackendRefs[j].Filters {
					mirror(at, k, f.RequestMirror)
				}
			}
		}
	case *gatewayv1.GRPCRoute:
		for i, r := range body.Spec.Rules {
			for k, f := range r.Filters {
				mirror(fmt.Sprintf("spec.rules[%d]", i), k, f.RequestMirror)
			}
			for j := range r.BackendRefs {
				at := backend(i, j, &r.BackendRefs[j].BackendObjectReference)
				for k, f := range r.BackendRefs[j].Filters {
					mirror(at, k, f.RequestMirror)
				}
			}
		}
	case *gatewayv1.TLSRoute:
		for i, r := range body.Spec.Rules {
			plain(i, r.BackendRefs)
		}
	case *gatewayv1.TCPRoute:
		for i, r := range body.Spec.Rules {
			plain(i, r.BackendRefs)
		}
	case *gatewayv1.UDPRoute:
		for i, r := range body.Spec.Rules {
			plain(i, r.BackendRefs)
		}
	}
	return field
}

// host is the FQDN of a Service.
func (l *lookup) host(n Name) string { return n.Name + "." + n.Namespace + ".svc." + l.cfg.Domain }
