package gatewayapi

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// parentOf is the Gateway that a ListenerSet names; false if it names something else.
func parentOf(o *object.Object) (Name, bool) {
	ref := &o.Body.(*gatewayv1.ListenerSet).Spec.ParentRef
	n := Name{Namespace: o.Key.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		n.Namespace = string(*ref.Namespace)
	}
	ok := (ref.Group == nil || *ref.Group == Group) && (ref.Kind == nil || *ref.Kind == Gateway)
	return n, ok
}

// ListenersOf are the names of the listeners that a Gateway or ListenerSet has; none of an object of another kind.
func ListenersOf(o *object.Object) (names []string) {
	switch b := o.Body.(type) {
	case *gatewayv1.Gateway:
		for _, l := range b.Spec.Listeners {
			names = append(names, string(l.Name))
		}
	case *gatewayv1.ListenerSet:
		for _, l := range b.Spec.Listeners {
			names = append(names, string(l.Name))
		}
	}
	return names
}

// maxListeners is how many listeners all ListenerSets of a Gateway may have: all are judged again when one changes.
const maxListeners = 4096

// addSets judges the ListenerSets of a Gateway, the oldest first.
func (l *lookup) addSets(g *gateway, spec *gatewayv1.GatewaySpec, claims *claims) {
	from, selector := gatewayv1.NamespacesFromNone, labels.Nothing()
	if allowed := spec.AllowedListeners; allowed != nil && allowed.Namespaces != nil && allowed.Namespaces.From != nil {
		from = *allowed.Namespaces.From
		if from == gatewayv1.NamespacesFromSelector {
			if s, err := metav1.LabelSelectorAsSelector(allowed.Namespaces.Selector); err == nil {
				selector = s
			}
		}
	}
	total := 0
	for _, o := range sortedObjects(l.sets[g.name]) {
		if _, ok := parentOf(o); !ok {
			continue
		}
		set := &listenerSet{name: nameOf(o.Key), gateway: g, object: o, status: ListenerSetStatus{
			Generation: o.Generation, Gateway: g.name, Controller: g.controller,
		}}
		g.sets = append(g.sets, set)
		if !l.allows(from, selector, g.name.Namespace, o.Key.Namespace) {
			set.conclude(false, string(gatewayv1.ListenerSetReasonNotAllowed),
				fmt.Sprintf("spec.allowedListeners of Gateway %s does not allow ListenerSets of namespace %s; allow the namespace there", g.name,
					o.Key.Namespace))
			continue
		}
		entries := o.Body.(*gatewayv1.ListenerSet).Spec.Listeners
		for i := range entries {
			entry := gatewayv1.Listener(entries[i])
			listener := l.listener(g, ListenerSet, o, ListenerID{Gateway: g.name, Set: set.name}, &entry)
			if total++; total > maxListeners && listener.refused == nil {
				listener.refused = &finding{
					string(gatewayv1.ListenerEntryReasonTooManyListeners), fmt.Sprintf("a Gateway takes %d listeners of ListenerSets", maxListeners),
				}
			}
			set.listeners = append(set.listeners, listener)
		}
		claims.add(set.listeners)
	}
}

// finish makes the conditions of an allowed set once conflicts are known.
func (s *listenerSet) finish() {
	if s.listeners == nil && s.status.Conditions != nil {
		return
	}
	good := 0
	var bad []string
	for _, l := range s.listeners {
		l.finish(s.status.Generation)
		if l.served {
			good++
		} else {
			bad = append(bad, fmt.Sprintf("%s (%s)", l.id.Listener, l.reason))
		}
	}
	switch {
	case s.gateway.refused != nil:
		s.conclude(false, string(gatewayv1.ListenerSetReasonParentNotAccepted), fmt.Sprintf("Gateway %s is not accepted", s.gateway.name))
	case len(bad) > 0:
		s.conclude(good > 0, string(gatewayv1.ListenerSetReasonListenersNotValid), "listeners that are not served: "+strings.Join(bad, ", "))
	default:
		s.conclude(true, string(gatewayv1.ListenerSetReasonAccepted), "all listeners are served")
	}
}

func (s *listenerSet) conclude(accepted bool, reason, message string) {
	message = object.Cut(message, maxMessage)
	s.status.Accepted, s.status.Reason, s.status.Message = accepted, reason, message
	s.status.Conditions = []metav1.Condition{
		condition(s.status.Generation, string(gatewayv1.ListenerSetConditionAccepted), accepted, reason, message),
	}
}

// sameAs reports whether the resource and the conditions of a set are those that it had. It spares the comparison of
// all ListenerSets of a Gateway where one has changed.
func (s *listenerSet) sameAs(o *listenerSet) bool {
	return s.object == o.object && s.status.Accepted == o.status.Accepted && s.status.Reason == o.status.Reason &&
		s.status.Message == o.status.Message && s.gateway.controller == o.gateway.controller && s.gateway.backend == o.gateway.backend &&
		slices.EqualFunc(s.gateway.selections, o.gateway.selections, sameSelection) &&
		slices.EqualFunc(s.listeners, o.listeners, (*listener).sameOutcome)
}

func sameSelection(a, b *configv1.WorkloadSelection) bool {
	return a.GetNamespace() == b.GetNamespace() && maps.Equal(a.GetLabels(), b.GetLabels())
}

// sameOutcome reports whether two judgements of one listener come to the same.
func (l *listener) sameOutcome(o *listener) bool {
	return slices.EqualFunc(l.conditions, o.conditions, func(a, b metav1.Condition) bool { return a == b }) && l.served == o.served &&
		l.reason == o.reason && l.message == o.message && l.proto.GetClientAuthorities() == o.proto.GetClientAuthorities() &&
		l.proto.GetInsecureFallback() == o.proto.GetInsecureFallback() && bytes.Equal(l.proto.GetTls().GetValue(), o.proto.GetTls().GetValue())
}
