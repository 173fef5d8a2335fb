package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/meshdefaults"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// ListenerID names a listener.
type ListenerID struct {
	Gateway Name
	// Set is the zero Name for a listener of the Gateway itself.
	Set      Name
	Listener string
}

// finding is the reason and message of a condition.
type finding struct{ reason, message string }

// listener is a listener that is judged.
type listener struct {
	id       ListenerID
	port     uint32
	protocol configv1.ListenerProtocol
	hostname string
	// passthrough is true if the listener does not terminate TLS.
	passthrough bool
	// owner is the namespace of the Gateway or ListenerSet.
	owner string
	// supportedKinds are the kinds of routes that may attach, and kinds the names of these.
	supportedKinds []gatewayv1.RouteGroupKind
	kinds          []string
	from           gatewayv1.FromNamespaces
	selector       labels.Selector

	// refused, conflict and unresolved are why the conditions Accepted, Conflicted and ResolvedRefs have another status
	// than usual; nil for each that is as usual.
	refused, conflict, unresolved *finding
	// shared is true if the conflict is one with another Gateway of the same workloads.
	shared bool
	// broken is true if the listener cannot be served for what is unresolved.
	broken bool
	// warning is part of the message of ResolvedRefs.
	warning string
	// overlapping is true if another listener of the port takes a part of the hostnames.
	overlapping bool
	proto       *configv1.GatewayListener
	conditions  []metav1.Condition

	served          bool
	reason, message string
}

// protocols are those that are served, with the kinds of routes that a listener takes.
var protocols = map[gatewayv1.ProtocolType]struct {
	protocol configv1.ListenerProtocol
	kinds    []string
}{
	gatewayv1.HTTPProtocolType:  {configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP, []string{HTTPRoute, GRPCRoute}},
	gatewayv1.HTTPSProtocolType: {configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, []string{HTTPRoute, GRPCRoute}},
	gatewayv1.TLSProtocolType:   {configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS, []string{TLSRoute}},
	gatewayv1.TCPProtocolType:   {configv1.ListenerProtocol_LISTENER_PROTOCOL_TCP, []string{TCPRoute}},
	gatewayv1.UDPProtocolType:   {configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP, []string{UDPRoute}},
}

// ownPorts are the ports of a gateway's Pod that its proxy and agent have themselves.
var ownPorts = []gatewayv1.PortNumber{15000, meshdefaults.StatusPort, 15021, 15090}

// listener judges a listener but for conflicts with others. kind and o are the Gateway or ListenerSet that has it.
func (l *lookup) listener(g *gateway, kind string, o *object.Object, id ListenerID, in *gatewayv1.Listener) *listener {
	id.Listener = string(in.Name)
	out := &listener{id: id, port: uint32(in.Port), owner: o.Key.Namespace, from: gatewayv1.NamespacesFromSame} //nolint:gosec // a port
	if in.Hostname != nil {
		out.hostname = strings.ToLower(string(*in.Hostname))
	}
	known, ok := protocols[in.Protocol]
	if !ok {
		out.supportedKinds = []gatewayv1.RouteGroupKind{}
		out.refused = &finding{
			string(gatewayv1.ListenerReasonUnsupportedProtocol),
			fmt.Sprintf("protocol %q is not supported; use HTTP, HTTPS, TLS, TCP or UDP", in.Protocol),
		}
		return out
	}
	out.protocol = known.protocol
	if in.Port < 1 || in.Port > 65535 || slices.Contains(ownPorts, in.Port) && in.Protocol != gatewayv1.UDPProtocolType {
		out.refused = &finding{
			string(gatewayv1.ListenerReasonPortUnavailable),
			fmt.Sprintf("port %d is not between 1 and 65535, or the proxy itself has it; choose another", in.Port),
		}
	}
	out.allow(in.AllowedRoutes, known.kinds)
	out.proto = &configv1.GatewayListener{Name: id.Listener, Port: out.port, Protocol: out.protocol, Hostname: out.hostname}
	switch out.protocol {
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_TCP, configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP:
		out.hostname, out.proto.Hostname = "", ""
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
		l.listenerTLS(g, out, kind, in)
	}
	return out
}

// revoked reports whether the listener is for HTTPS and is not served because its certificates are not granted. Secrets
// that are not there do not count: one that is replaced may be gone for a moment.
func (l *listener) revoked() bool {
	return l.protocol == configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS && l.refused == nil && l.conflict == nil && l.broken &&
		l.unresolved != nil && l.unresolved.reason == string(gatewayv1.ListenerReasonRefNotPermitted)
}

// unsupportedValue refuses the listener.
func (l *listener) unsupportedValue(format string, args ...any) {
	if l.refused == nil {
		l.refused = &finding{string(gatewayv1.ListenerReasonUnsupportedValue), fmt.Sprintf(format, args...)}
	}
}

// unresolve keeps the first reference that cannot be resolved.
func (l *listener) unresolve(reason gatewayv1.ListenerConditionReason, format string, args ...any) {
	if l.unresolved == nil {
		l.unresolved = &finding{string(reason), fmt.Sprintf(format, args...)}
	}
}

// allow takes over which routes may attach.
func (l *listener) allow(in *gatewayv1.AllowedRoutes, byProtocol []string) {
	l.kinds = byProtocol
	if in != nil && len(in.Kinds) > 0 {
		l.kinds = nil
		for _, k := range in.Kinds {
			group := gatewayv1.Group(Group)
			if k.Group != nil {
				group = *k.Group
			}
			if group != Group || !slices.Contains(byProtocol, string(k.Kind)) {
				l.unresolve(gatewayv1.ListenerReasonInvalidRouteKinds,
					"allowedRoutes.kinds: %s of group %q cannot attach to the listener's protocol, which takes %s", k.Kind, group,
					strings.Join(byProtocol, " and "))
			} else if !slices.Contains(l.kinds, string(k.Kind)) {
				l.kinds = append(l.kinds, string(k.Kind))
			}
		}
	}
	l.supportedKinds = make([]gatewayv1.RouteGroupKind, len(l.kinds))
	for i, k := range l.kinds {
		group := gatewayv1.Group(Group)
		l.supportedKinds[i] = gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(k)}
	}
	if in == nil || in.Namespaces == nil || in.Namespaces.From == nil {
		return
	}
	l.from = *in.Namespaces.From
	if l.from == gatewayv1.NamespacesFromSelector {
		var err error
		if l.selector, err = metav1.LabelSelectorAsSelector(in.Namespaces.Selector); err != nil {
			l.selector = labels.Nothing()
			l.unsupportedValue("allowedRoutes.namespaces.selector: %v", err)
		}
	}
}

// allows reports whether objects of a namespace may attach.
func (l *lookup) allows(from gatewayv1.FromNamespaces, selector labels.Selector, owner, namespace string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return owner == namespace
	case gatewayv1.NamespacesFromSelector:
		return selector.Matches(l.namespaceLabels(namespace))
	default:
		return false
	}
}

// finish makes the conditions once conflicts are known.
func (l *listener) finish(generation int64) {
	add := func(typ gatewayv1.ListenerConditionType, ok bool, reason, message string) {
		l.conditions = append(l.conditions, condition(generation, string(typ), ok, reason, object.Cut(message, maxMessage)))
	}
	l.served = l.refused == nil && l.conflict == nil && !l.broken
	switch {
	case l.refused != nil:
		l.reason, l.message = l.refused.reason, l.refused.message
	case l.conflict != nil:
		l.reason, l.message = l.conflict.reason, l.conflict.message
	case l.broken:
		l.reason, l.message = string(gatewayv1.ListenerReasonInvalid), l.unresolved.message
	}
	if l.refused != nil || l.conflict != nil {
		add(gatewayv1.ListenerConditionAccepted, false, l.reason, l.message)
	} else {
		add(gatewayv1.ListenerConditionAccepted, true, string(gatewayv1.ListenerReasonAccepted), "the listener is valid")
	}
	if l.conflict != nil {
		add(gatewayv1.ListenerConditionConflicted, true, l.conflict.reason, l.conflict.message)
	} else {
		add(gatewayv1.ListenerConditionConflicted, false, string(gatewayv1.ListenerReasonNoConflicts),
			"no other listener has its port and hostname")
	}
	if l.unresolved != nil {
		add(gatewayv1.ListenerConditionResolvedRefs, false, l.unresolved.reason, l.unresolved.message)
	} else {
		message := "all references are resolved"
		if l.warning != "" {
			message += "; " + l.warning
		}
		add(gatewayv1.ListenerConditionResolvedRefs, true, string(gatewayv1.ListenerReasonResolvedRefs), message)
	}
	if l.overlapping && l.served {
		add(gatewayv1.ListenerConditionOverlappingTLSConfig, true, string(gatewayv1.ListenerReasonOverlappingHostnames),
			"another listener of the port takes a part of the hostnames; requests that come by its connections get 421")
	}
}

// sameListeners reports whether two lists of listeners take the same routes.
func sameListeners(a, b []*listener) bool {
	return slices.EqualFunc(a, b, func(a, b *listener) bool {
		return a.id == b.id && a.port == b.port && a.protocol == b.protocol && a.hostname == b.hostname && a.owner == b.owner &&
			a.passthrough == b.passthrough && slices.Equal(a.kinds, b.kinds) && a.from == b.from &&
			selectorText(a.selector) == selectorText(b.selector)
	})
}

func selectorText(s labels.Selector) string {
	if s == nil {
		return ""
	}
	return s.String()
}
