package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// attachment is what one parentRef of a route comes to.
type attachment struct {
	ref        gatewayv1.ParentReference
	controller gatewayv1.GatewayController
	// refused is why the parent does not take the route; nil if it does.
	refused   *finding
	listeners []*configv1.ListenerAttachment
	ids       []ListenerID
	// senders are the Gateways with listeners that take the route and open connections of their own, to which a
	// BackendTLSPolicy applies.
	senders []Name
	// mesh is true if the parent is a Service or ServiceEntry; services are what takes the route then.
	mesh     bool
	services []*configv1.ServiceAttachment
}

// attach attaches a route to a parent; nil if that is none of ours.
func (l *lookup) attach(o *object.Object, hostnames []gatewayv1.Hostname, ref *gatewayv1.ParentReference) *attachment {
	group, kind := gatewayv1.Group(Group), Gateway
	if ref.Group != nil {
		group = *ref.Group
	}
	if ref.Kind != nil {
		kind = string(*ref.Kind)
	}
	n := Name{Namespace: o.Key.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		n.Namespace = string(*ref.Namespace)
	}
	out := &attachment{ref: *ref}
	switch {
	case group == Group && kind == Gateway:
		l.read(key(Gateway, n))
		g := l.gateways[n]
		if g == nil {
			return nil
		}
		out.controller = g.controller
		l.listeners(out, o, hostnames, g.listeners)
	case group == Group && kind == ListenerSet:
		l.read(key(ListenerSet, n))
		set := l.judged[n]
		if set == nil {
			return nil
		}
		out.controller = set.gateway.controller
		l.listeners(out, o, hostnames, set.listeners)
	case group == "" && kind == service:
		out.controller, out.mesh = gatewaydeploy.MeshController, true
		l.toService(out, o, n)
	case group == groupIstio && kind == serviceEntry:
		out.controller, out.mesh = gatewaydeploy.MeshController, true
		l.toEntry(out, o, n)
	default:
		return nil
	}
	if o.Key.Kind == TLSRoute {
		for _, s := range out.services {
			for _, h := range hostsOf("", hostnames) {
				if h.GetDomain() != "" {
					s.ServerNames = append(s.ServerNames, h.GetDomain())
				}
			}
		}
	}
	return out
}

func (a *attachment) refuse(reason gatewayv1.RouteConditionReason, format string, args ...any) {
	a.refused = &finding{string(reason), fmt.Sprintf(format, args...)}
}

// listeners attaches a route to those listeners that take it.
func (l *lookup) listeners(a *attachment, o *object.Object, hostnames []gatewayv1.Hostname, listeners []*listener) {
	named, kinds := 0, 0
	var allowed []*listener
	for _, listener := range listeners {
		if a.ref.SectionName != nil && *a.ref.SectionName != "" && string(*a.ref.SectionName) != listener.id.Listener ||
			a.ref.Port != nil && uint32(*a.ref.Port) != listener.port { //nolint:gosec // a port
			continue
		}
		named++
		if !slices.Contains(listener.kinds, o.Key.Kind) {
			continue
		}
		kinds++
		if !l.allows(listener.from, listener.selector, listener.owner, o.Key.Namespace) {
			continue
		}
		allowed = append(allowed, listener)
		attached := &configv1.ListenerAttachment{Gateway: listener.id.Gateway.String(), Listener: listener.id.Listener}
		if listener.id.Set != (Name{}) {
			attached.ListenerSet = listener.id.Set.String()
		}
		if o.Key.Kind != TCPRoute && o.Key.Kind != UDPRoute {
			if attached.Hosts = hostsOf(listener.hostname, hostnames); len(attached.Hosts) == 0 {
				continue
			}
		}
		a.listeners, a.ids = append(a.listeners, attached), append(a.ids, listener.id)
		if attached.Hosts != nil && !listener.passthrough {
			a.senders = append(a.senders, listener.id.Gateway)
		}
	}
	switch {
	case len(a.ids) > 0:
	case len(listeners) == 0:
		a.refuse(gatewayv1.RouteReasonNoMatchingParent, "the parent has no listeners, or is not accepted; see its status")
	case named == 0:
		a.refuse(gatewayv1.RouteReasonNoMatchingParent, "the parent has no listener with %s; its listeners are %s", wanted(&a.ref),
			listed(listeners, func(l *listener) string { return fmt.Sprintf("%s (port %d)", l.id.Listener, l.port) }))
	case kinds == 0:
		a.refuse(gatewayv1.RouteReasonNotAllowedByListeners, "no listener takes %ss; add one of a protocol that does, or allow the kind in its "+
			"allowedRoutes.kinds", o.Key.Kind)
	case len(allowed) == 0:
		a.refuse(gatewayv1.RouteReasonNotAllowedByListeners, "no listener allows %ss of namespace %s; allow the namespace in the listener's "+
			"allowedRoutes.namespaces", o.Key.Kind, o.Key.Namespace)
	default:
		a.refuse(gatewayv1.RouteReasonNoMatchingListenerHostname, "no listener has a hostname in common with the route's %s; listeners have %s",
			listed(hostnames, func(h gatewayv1.Hostname) string { return string(h) }),
			listed(allowed, func(l *listener) string { return cmp.Or(l.hostname, "any") }))
	}
}

// wanted is what a parentRef says of the listener.
func wanted(ref *gatewayv1.ParentReference) string {
	var out []string
	if ref.SectionName != nil && *ref.SectionName != "" {
		out = append(out, fmt.Sprintf("sectionName %q", *ref.SectionName))
	}
	if ref.Port != nil {
		out = append(out, fmt.Sprintf("port %d", *ref.Port))
	}
	return cmp.Or(strings.Join(out, " and "), "any name")
}

// listed names the first few of a list, each once.
func listed[T any](list []T, text func(T) string) string {
	const most = 8
	var out []string
	for _, v := range list {
		switch one := text(v); {
		case slices.Contains(out, one):
		case len(out) == most:
			return strings.Join(out, ", ") + " and others"
		default:
			out = append(out, one)
		}
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

// toService attaches a route to a Service, for clients in the mesh.
func (l *lookup) toService(a *attachment, o *object.Object, n Name) {
	s := l.service(n)
	switch {
	case s == nil:
		a.refuse(gatewayv1.RouteReasonNoMatchingParent, "there is no Service %s; create it, or name one that is there", n)
		return
	case o.Key.Kind == UDPRoute:
		a.refuse(gatewayv1.RouteReasonUnsupportedValue, "a UDPRoute cannot be attached to a Service")
		return
	case s.Body.(*corev1.Service).Spec.Type == corev1.ServiceTypeExternalName:
		a.refuse(gatewayv1.RouteReasonUnsupportedValue, "Service %s is of type ExternalName, which is not supported", n)
		return
	}
	out := &configv1.ServiceAttachment{Hostname: l.host(n)}
	if n.Namespace != o.Key.Namespace {
		out.ClientNamespace = o.Key.Namespace
	}
	section := a.ref.SectionName != nil && *a.ref.SectionName != ""
	if a.ref.Port != nil || section {
		for _, p := range s.Body.(*corev1.Service).Spec.Ports {
			if (a.ref.Port == nil || *a.ref.Port == p.Port) && (!section || string(*a.ref.SectionName) == p.Name) {
				out.Port = uint32(p.Port) //nolint:gosec // a port
			}
		}
		if out.Port == 0 {
			a.refuse(gatewayv1.RouteReasonNoMatchingParent, "Service %s has no port with the sectionName and port", n)
			return
		}
	}
	a.services = append(a.services, out)
}

func compareListeners(a, b *configv1.ListenerAttachment) int {
	return cmp.Or(strings.Compare(a.GetGateway(), b.GetGateway()), strings.Compare(a.GetListenerSet(), b.GetListenerSet()),
		strings.Compare(a.GetListener(), b.GetListener()))
}

func compareServices(a, b *configv1.ServiceAttachment) int {
	return cmp.Or(strings.Compare(a.GetHostname(), b.GetHostname()), cmp.Compare(a.GetPort(), b.GetPort()))
}
