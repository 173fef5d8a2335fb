package status

import (
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
)

// ownTypes are the types of conditions that are the mesh's in the status of an object of its own: one that does not
// apply any more is removed.
var ownTypes = []string{Accepted, Programmed, ResolvedRefs, string(gatewayv1.ListenerConditionConflicted),
	string(gatewayv1.ListenerConditionOverlappingTLSConfig), string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
	string(gatewayv1.RouteConditionPartiallyInvalid)}

// mergeAPI is Merge for an object of the Gateway API. Entries of other controllers, and conditions of other types,
// stay.
func mergeAPI(before map[string]any, s *API, now time.Time) (after map[string]any, changed bool) {
	m := merger{now: now, keepTrue: s.KeepTrue}
	after = maps.Clone(before)
	if after == nil {
		after = map[string]any{}
	}
	switch {
	case s.Class != nil:
		m.conditions(after, s.Class.Conditions)
		setList(after, "supportedFeatures", treesOf(s.Class.SupportedFeatures))
	case s.Gateway != nil:
		m.conditions(after, s.Gateway.Conditions)
		setList(after, "addresses", treesOf(s.Gateway.Addresses))
		var listeners []any
		for _, l := range s.Gateway.Listeners {
			listeners = append(listeners, m.entry(after, "listeners", treeOf(l), l.Conditions, sameName))
		}
		setList(after, "listeners", listeners)
		if n := s.Gateway.AttachedListenerSets; n != nil {
			after["attachedListenerSets"] = int64(*n)
		} else if after["attachedListenerSets"] != nil {
			after["attachedListenerSets"] = int64(0)
		}
	case s.ListenerSet != nil:
		m.conditions(after, s.ListenerSet.Conditions)
		var listeners []any
		for _, l := range s.ListenerSet.Listeners {
			listeners = append(listeners, m.entry(after, "listeners", treeOf(l), l.Conditions, sameName))
		}
		setList(after, "listeners", listeners)
	case s.Route != nil:
		var own []any
		for _, p := range s.Route.Parents {
			own = append(own, m.entry(after, "parents", treeOf(p), p.Conditions, sameIn("parentRef")))
		}
		setList(after, "parents", withOthers(after["parents"], own, sameIn("parentRef"), maxParents))
	case s.Policy != nil:
		var own []any
		for _, a := range s.Policy.Ancestors {
			own = append(own, m.entry(after, "ancestors", treeOf(a), a.Conditions, sameIn("ancestorRef")))
		}
		setList(after, "ancestors", withOthers(after["ancestors"], own, sameIn("ancestorRef"), maxAncestors))
	}
	return after, len(before)+len(after) > 0 && !reflect.DeepEqual(before, after)
}

// Bounds of the API.
const (
	maxParents   = 32
	maxAncestors = 16
)

type merger struct {
	now      time.Time
	keepTrue bool
}

// conditions merges the conditions of a status, or of an entry of it, in place.
func (m *merger) conditions(into map[string]any, own []metav1.Condition) {
	old, _ := into[fieldConditions].([]any)
	list := conditionsOf(own)
	var generation int64
	for i := range list {
		generation = own[i].ObservedGeneration
		if c := &list[i]; c.Type == Programmed && c.Reason == reasonPending {
			c.KeepTrue = m.keepTrue
		}
	}
	into[fieldConditions] = mergeConditions(slices.DeleteFunc(slices.Clone(old), func(o any) bool {
		c, _ := o.(map[string]any)
		kind, _ := c["type"].(string)
		return slices.Contains(ownTypes, kind) && !slices.ContainsFunc(own, func(c metav1.Condition) bool { return c.Type == kind })
	}), list, generation, m.now)
}

// entry returns an own entry of a list, with the conditions merged into those that it has now.
func (m *merger) entry(status map[string]any, field string, own map[string]any, conditions []metav1.Condition,
	same func(a, b map[string]any) bool,
) map[string]any {
	delete(own, fieldConditions)
	list, _ := status[field].([]any)
	for _, o := range list {
		if old, _ := o.(map[string]any); same(old, own) && old[fieldConditions] != nil {
			own[fieldConditions] = old[fieldConditions]
			break
		}
	}
	m.conditions(own, conditions)
	return own
}

func sameName(a, b map[string]any) bool { return a["name"] == b["name"] }

// sameIn returns whether two entries are of one controller and for one parent, which a field names.
func sameIn(field string) func(a, b map[string]any) bool {
	return func(a, b map[string]any) bool {
		return a["controllerName"] == b["controllerName"] && reflect.DeepEqual(a[field], b[field])
	}
}

// withOthers is a list of own entries and those of other controllers. Entries stay at their place; of the own ones
// those are left out for which there is no room.
func withOthers(old any, own []any, same func(a, b map[string]any) bool, most int) []any {
	list, _ := old.([]any)
	var out, left []any
	left = slices.Clone(own)
	others := 0
	for _, o := range list {
		e, _ := o.(map[string]any)
		controller, _ := e["controllerName"].(string)
		if !gatewaydeploy.Ours(gatewayv1.GatewayController(controller)) {
			out = append(out, o)
			others++
			continue
		}
		if i := slices.IndexFunc(left, func(n any) bool { return same(n.(map[string]any), e) }); i >= 0 {
			out = append(out, left[i])
			left = slices.Delete(left, i, i+1)
		}
	}
	out = append(out, left...)
	for len(out) > max(most, others) {
		i := len(out) - 1
		for ; i >= 0; i-- {
			if c, _ := out[i].(map[string]any)["controllerName"].(string); gatewaydeploy.Ours(gatewayv1.GatewayController(c)) {
				break
			}
		}
		out = slices.Delete(out, i, i+1)
	}
	return out
}

// setList sets a list of a status; an empty one stays absent if it is.
func setList(into map[string]any, field string, list []any) {
	if len(list) == 0 {
		if into[field] == nil {
			return
		}
		list = []any{}
	}
	into[field] = list
}

func treesOf[T any](list []T) []any {
	out := make([]any, 0, len(list))
	for i := range list {
		out = append(out, treeOf(list[i]))
	}
	return out
}

// treeOf is a part of a status as JSON has it. The types of the API can be converted.
func treeOf[T any](v T) map[string]any {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v)
	if err != nil {
		return map[string]any{}
	}
	return tree
}
