package status

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

const ours, theirs = "istio.io/gateway-controller", "example.com/other"

func apiCondition(typ string, holds bool, reason string, generation int64) metav1.Condition {
	c := metav1.Condition{Type: typ, Status: metav1.ConditionFalse, Reason: reason, Message: "m", ObservedGeneration: generation}
	if holds {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func parent(controller, name string, conditions ...metav1.Condition) gatewayv1.RouteParentStatus {
	return gatewayv1.RouteParentStatus{ControllerName: gatewayv1.GatewayController(controller),
		ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, Conditions: conditions}
}

// TestMergeOfTheGatewayAPI: what is the mesh's own is replaced, what is others' stays, and times change with statuses.
func TestMergeOfTheGatewayAPI(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	const old = "2020-01-01T00:00:00Z"
	accepted := apiCondition(Accepted, true, "Accepted", 2)
	is := func(typ, status, reason, at, generation string) string {
		return "{type: " + typ + ", status: '" + status + "', reason: " + reason + ", message: m, observedGeneration: " + generation +
			", lastTransitionTime: '" + at + "'}"
	}
	const new = "2030-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		before string
		api    API
		want   string
	}{
		"the first status of a route": {"", API{Route: parents(parent(ours, "edge", accepted))},
			"parents: [{controllerName: " + ours + ", parentRef: {name: edge}, conditions: [" + is("Accepted", "True", "Accepted", new, "2") +
				"]}]"},
		"the parents of another controller stay where they are": {
			"parents: [{controllerName: " + ours + ", parentRef: {name: old}, conditions: []}, {controllerName: " + theirs +
				", parentRef: {name: edge}, conditions: [{type: Accepted, status: 'True', reason: R, message: x, lastTransitionTime: '" + old + "'}]}]",
			API{Route: parents(parent(ours, "edge", accepted))},
			"parents: [{controllerName: " + theirs +
				", parentRef: {name: edge}, conditions: [{type: Accepted, status: 'True', reason: R, message: x, lastTransitionTime: '" + old +
				"'}]}, " +
				"{controllerName: " + ours + ", parentRef: {name: edge}, conditions: [" + is("Accepted", "True", "Accepted", new, "2") + "]}]"},
		"a route without a parent of ours any more": {
			"parents: [{controllerName: " + ours + ", parentRef: {name: edge}, conditions: []}]", API{Route: &gatewayv1.RouteStatus{}},
			"parents: []"},
		"a route that never had one": {"", API{Route: &gatewayv1.RouteStatus{}}, ""},
		"a condition of another type, and the time of one that has not changed, stay": {
			"parents: [{controllerName: " + ours + ", parentRef: {name: edge}, conditions: [" + is("Accepted", "True", "Accepted", old, "1") + ", " +
				is("example.com/Seen", "True", "Seen", old, "1") + ", " + is("PartiallyInvalid", "True", "X", old, "1") + "]}]",
			API{Route: parents(parent(ours, "edge", accepted))},
			"parents: [{controllerName: " + ours + ", parentRef: {name: edge}, conditions: [" + is("Accepted", "True", "Accepted", old, "2") + ", " +
				is("example.com/Seen", "True", "Seen", old, "1") + "]}]"},
		"listeners": {
			"conditions: [" + is("Accepted", "True", "Accepted", old, "2") + ", " + is("example.com/Seen", "True", "Seen", old, "1") +
				"]\naddresses: [{type: IPAddress, value: 10.0.0.1}]\nlisteners: [{name: gone}, {name: http, attachedRoutes: 1, conditions: [" +
				is("Programmed", "True", "Programmed", old, "2") + ", " + is("example.com/Seen", "True", "Seen", old, "1") + "]}]",
			API{KeepTrue: true, Gateway: &gatewayv1.GatewayStatus{Conditions: []metav1.Condition{accepted}, Listeners: []gatewayv1.ListenerStatus{
				{Name: "http", AttachedRoutes: 2, Conditions: []metav1.Condition{apiCondition(Programmed, false, reasonPending, 2)}}}}},
			"conditions: [" + is("Accepted", "True", "Accepted", old, "2") + ", " + is("example.com/Seen", "True", "Seen", old, "1") +
				"]\naddresses: []\nlisteners: [{name: http, attachedRoutes: 2, conditions: [" + is("Programmed", "True", "Programmed", old, "2") +
				", " + is("example.com/Seen", "True", "Seen", old, "1") + "]}]"},
		"conditions of the mesh's own that do not apply any more go": {
			"conditions: [" + is("Accepted", "True", "Accepted", old, "2") + ", " + is("InsecureFrontendValidationMode", "True", "X", old, "1") +
				"]\naddresses: []\nlisteners: [{name: http, attachedRoutes: 2, conditions: [" + is("Programmed", "True", "Programmed", old, "2") +
				", " + is("OverlappingTLSConfig", "True", "X", old, "1") + ", " + is("example.com/Seen", "True", "Seen", old, "1") + "]}]",
			API{KeepTrue: true, Gateway: &gatewayv1.GatewayStatus{Conditions: []metav1.Condition{accepted}, Listeners: []gatewayv1.ListenerStatus{
				{Name: "http", AttachedRoutes: 2, Conditions: []metav1.Condition{apiCondition(Programmed, false, reasonPending, 2)}}}}},
			"conditions: [" + is("Accepted", "True", "Accepted", old, "2") +
				"]\naddresses: []\nlisteners: [{name: http, attachedRoutes: 2, conditions: [" + is("Programmed", "True", "Programmed", old, "2") +
				", " + is("example.com/Seen", "True", "Seen", old, "1") + "]}]"},
		"pending in earnest": {
			"conditions: [" + is("Programmed", "True", "Programmed", old, "2") + "]",
			API{Gateway: &gatewayv1.GatewayStatus{
				Conditions: []metav1.Condition{apiCondition(Programmed, false, reasonPending, 2)}}},
			"conditions: [" + is("Programmed", "False", "Pending", new, "2") + "]"},
		"pending in a new generation": {
			"conditions: [" + is("Programmed", "True", "Programmed", old, "1") + "]",
			API{KeepTrue: true, Gateway: &gatewayv1.GatewayStatus{
				Conditions: []metav1.Condition{apiCondition(Programmed, false, reasonPending, 2)}}},
			"conditions: [" + is("Programmed", "False", "Pending", new, "2") + "]"},
		"rejected": {
			"conditions: [" + is("Programmed", "True", "Programmed", old, "2") + "]",
			API{KeepTrue: true, Gateway: &gatewayv1.GatewayStatus{
				Conditions: []metav1.Condition{apiCondition(Programmed, false, reasonInvalid, 2)}}},
			"conditions: [" + is("Programmed", "False", "Invalid", new, "2") + "]"},
		"features": {
			"conditions: [" + is("SupportedVersion", "True", "X", old, "1") + "]\nsupportedFeatures: [{name: Old}]",
			API{Class: &gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{accepted},
				SupportedFeatures: []gatewayv1.SupportedFeature{{Name: "A"}, {Name: "B"}}}},
			"conditions: [" + is("Accepted", "True", "Accepted", new, "2") + ", " + is("SupportedVersion", "True", "X", old, "1") +
				"]\nsupportedFeatures: [{name: A}, {name: B}]"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tree(t, c.before)
			if c.before == "" {
				before = nil // as of an object without a status
			}
			after, changed := Merge(before, &Status{API: &c.api}, now)
			if got, want := jsonOf(t, after), jsonOf(t, tree(t, c.want)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if changed != (jsonOf(t, after) != jsonOf(t, tree(t, c.before))) {
				t.Errorf("changed: %v", changed)
			}
			if again, changed := Merge(tree(t, jsonOf(t, after)), &Status{API: &c.api}, now.Add(time.Hour)); changed {
				t.Errorf("merged again, it changes to %s", jsonOf(t, again))
			}
		})
	}
}

func parents(list ...gatewayv1.RouteParentStatus) *gatewayv1.RouteStatus {
	return &gatewayv1.RouteStatus{Parents: list}
}

// TestRoomForEntries: others' entries are never removed for want of room.
func TestRoomForEntries(t *testing.T) {
	var others, own []any
	entry := func(controller string, i int) map[string]any {
		return map[string]any{"controllerName": controller, "ancestorRef": map[string]any{"name": string(rune('a' + i))}}
	}
	for i := range 14 {
		others = append(others, entry(theirs, i))
	}
	for i := range 5 {
		own = append(own, entry(ours, i))
	}
	got := withOthers(others, own, sameIn("ancestorRef"), maxAncestors)
	if len(got) != maxAncestors || got[13].(map[string]any)["controllerName"] != theirs || got[15].(map[string]any)["controllerName"] != ours {
		t.Errorf("%d entries: %v", len(got), got)
	}
}

// tree is a status as a client of an API server reads it.
func tree(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if text == "" {
		return out
	}
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(js, &out); err != nil {
		t.Fatal(err)
	}
	integers(out)
	return out
}

// integers makes numbers what Kubernetes' decoder makes of them.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		return int64(v)
	}
	return v
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	js, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(js)
}
