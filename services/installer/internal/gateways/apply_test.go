package gateways

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
)

// An object is a Gateway's if it has the label and that Gateway as its owner; whatever lacks one of them is somebody
// else's.
func TestWhoseAnObjectIs(t *testing.T) {
	gw := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1"}}
	owner := func(apiVersion, kind, name, uid string) any {
		return map[string]any{"apiVersion": apiVersion, "kind": kind, "name": name, "uid": uid}
	}
	const api = "gateway.networking.k8s.io/v1"
	for name, c := range map[string]struct {
		managed bool
		owners  []any
		want    ownership
	}{
		"the Gateway's":                  {true, []any{owner(api, "Gateway", "web", "1")}, own},
		"of an earlier version":          {true, []any{owner("gateway.networking.k8s.io/v1beta1", "Gateway", "web", "1")}, own},
		"of a Gateway that was deleted":  {true, []any{owner(api, "Gateway", "web", "0")}, stale},
		"without the label":              {false, []any{owner(api, "Gateway", "web", "1")}, others},
		"without an owner":               {true, nil, others},
		"of another Gateway":             {true, []any{owner(api, "Gateway", "pay", "2")}, others},
		"of Istio's Gateway":             {true, []any{owner("networking.istio.io/v1", "Gateway", "web", "1")}, others},
		"of another kind of that API":    {true, []any{owner(api, "ListenerSet", "web", "1")}, others},
		"neither the label nor an owner": {false, nil, others},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "ns", "name": "web-istio"}}}
		if c.managed {
			u.SetLabels(map[string]string{gatewaydeploy.ManagedLabel: gatewaydeploy.ManagedValue(gatewaydeploy.IstioController)})
		}
		if c.owners != nil {
			u.Object["metadata"].(map[string]any)["ownerReferences"] = c.owners //nolint:forcetypeassert // set above
		}
		if got := stateOf(u, gw); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := stateOf(nil, gw); got != absent {
		t.Errorf("what is not there: %v", got)
	}
}
