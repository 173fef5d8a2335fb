package waiting_test

import (
	"strings"
	"testing"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/waiting"
)

// TestUntil waits in a mesh whose proxies have acknowledged revision 1, and which has VirtualService shop/web, whose
// condition Programmed says that a proxy rejects it.
func TestUntil(t *testing.T) {
	m := clitest.New(t)
	m.SetFiles([]*configv1.Object{{Key: kinds.Key("VirtualService", "shop", "web"), Source: "file", Manifest: []byte("{}")}}, nil)
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: "sidecar~1~a.shop~x", Acked: clitest.Revision(1)}, {NodeId: "sidecar~1~b.shop~x"}}, nil)
	for name, tc := range map[string]struct {
		object, until string
		threshold     float64
		done          bool
		says          string
	}{
		"a rejection ends the wait":       {"web", waiting.Programmed, 1, false, "VirtualService shop/web: Rejected: 1 of 2 proxies acknowledged"},
		"delivery to all is too much":     {"web", waiting.Delivery, 1, false, "of 2 proxies have acknowledged it, not "},
		"delivery to nobody is there":     {"web", waiting.Delivery, 0, true, "of 2 proxies have acknowledged it"},
		"an object that is gone":          {"api", waiting.Deleted, 0, true, "deleted, "},
		"an object that is still there":   {"web", waiting.Deleted, 1, false, "it is still there, from file"},
		"a name that is nearly an object": {"wbe", waiting.Programmed, 1, false, `did you mean "web" in namespace shop?`},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := waiting.Until(t.Context(), m.Mesh(), waiting.Request{
				Key: kinds.Key("VirtualService", "shop", tc.object), For: tc.until, Threshold: tc.threshold, Timeout: 300 * time.Millisecond,
			})
			if result == nil || result.Done != tc.done || (err == nil) != tc.done || !strings.Contains(result.Message, tc.says) {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

// TestUntilAnObjectOfTheGatewayAPIIsServed waits for objects whose parents may come later: only a refusal, of the
// object or by a proxy, ends the wait.
func TestUntilAnObjectOfTheGatewayAPIIsServed(t *testing.T) {
	m := clitest.New(t)
	accepted := &configv1.Condition{Type: "Accepted", Status: "True"}
	condition := func(typ, reason, message string) *configv1.Condition {
		return &configv1.Condition{Type: typ, Status: "False", Reason: reason, Message: message}
	}
	var objects []*configv1.Object
	var statuses []*configv1.ObjectStatus
	add := func(kind, name string, conditions ...*configv1.Condition) {
		key := kinds.Key(kind, "shop", name)
		objects = append(objects, &configv1.Object{Key: key, Source: "file", Manifest: []byte("{}")})
		statuses = append(statuses, &configv1.ObjectStatus{Key: key, Conditions: conditions})
	}
	add("HTTPRoute", "served", accepted, condition("ResolvedRefs", "BackendNotFound", "gone"), &configv1.Condition{Type: "Programmed", Status: "True"})
	add("HTTPRoute", "apart", condition("Accepted", "NoMatchingParent", "no listener"), condition("Programmed", "Invalid", "nothing"))
	add("TCPRoute", "foreign")
	add("HTTPRoute", "refused", condition("Accepted", "Invalid", "spec is bad"))
	add("HTTPRoute", "rejected", accepted, condition("Programmed", "Rejected", "Envoy says no"))
	add(kinds.APIGateway, "edge", accepted, condition("Programmed", "Pending", "no gateway is connected"))
	add("Gateway", "edge", accepted)
	m.SetFiles(objects, nil)
	m.SetStatuses(statuses...)
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: "router~1~a.shop~x", Acked: clitest.Revision(9)}}, nil)
	for _, tc := range []struct {
		kind, name  string
		done, waits bool
		says        string
	}{
		{"HTTPRoute", "served", true, false, "programmed"},
		{"HTTPRoute", "apart", false, true, "NoMatchingParent: no listener"},
		{"TCPRoute", "foreign", false, true, "nothing of this mesh serves it"},
		{"HTTPRoute", "refused", false, false, "Invalid: spec is bad"},
		{"HTTPRoute", "rejected", false, false, "Rejected: Envoy says no"},
		{kinds.APIGateway, "edge", false, true, "Pending: no gateway is connected"},
		{"Gateway", "edge", true, false, "programmed"},
	} {
		result, err := waiting.Until(t.Context(), m.Mesh(), waiting.Request{
			Key: kinds.Key(tc.kind, "shop", tc.name), For: waiting.Programmed, Threshold: 1, Timeout: 300 * time.Millisecond,
		})
		if result == nil || result.Done != tc.done || (err == nil) != tc.done || !strings.Contains(result.Message, tc.says) ||
			strings.Contains(result.Message, "not programmed within") != tc.waits {
			t.Errorf("%s %s: %+v, %v", tc.kind, tc.name, result, err)
		}
	}
	_, err := waiting.Until(t.Context(), m.Mesh(), waiting.Request{
		Key: kinds.Key("Gateway", "shop", "ege"), For: waiting.Programmed, Threshold: 1, Timeout: 300 * time.Millisecond,
	})
	if err == nil || !strings.Contains(err.Error(), `did you mean "edge"`) {
		t.Errorf("%v", err)
	}
}
