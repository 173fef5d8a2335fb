package validate

import (
	"errors"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// TestUnreadKinds: an unread kind is reported with the most similar kind that is read; a kind that can only be a
// misspelt known one is refused.
func TestUnreadKinds(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: apps}": "m.yaml:1: Deployment apps/a: kind: " +
			"apps/v1 Deployment: the mesh reads Pods, not this kind; `fairlead up -f`",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRout\nmetadata: {name: a}": `refused: m.yaml:2: HTTPRout default/a: kind: ` +
			`"HTTPRout": no kind of gateway.networking.k8s.io; did you mean "HTTPRoute"?`,
		"apiVersion: gateway.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: a}": "InferencePool a: kind: " +
			"gateway.networking.k8s.io/v1 InferencePool: nobody reads this kind; remove it",
		"apiVersion: networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: a}": `refused: m.yaml:1: Gateway default/a: apiVersion: ` +
			`"networking.k8s.io/v1": no API version of Gateway; use gateway.networking.k8s.io/v1`,
		"apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: Gateway\nmetadata: {name: a}\nspec: {gatewayClassName: a, listeners: " +
			"[{name: a, port: 80, protocol: HTTP}]}": `refused: m.yaml:1: Gateway.gateway.networking.k8s.io default/a: apiVersion: ` +
			`"gateway.networking.k8s.io/v1alpha2": version is not served for Gateway; use gateway.networking.k8s.io/v1`,
		"apiVersion: example.com/v1\nkind: Servce\nmetadata: {name: a}": "did you mean v1 Service?",
		"apiVersion: example.com/v1\nkind: VirtualServce\nmetadata: {name: a}": "did you mean networking.istio.io/v1 " +
			"VirtualService?",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}": "nobody reads this kind; remove it",
		"apiVersion: networking.istio.io/v1\nkind: VirtualServce\nmetadata: {name: a}":     `refused: m.yaml:2: VirtualServce default/a: kind: "VirtualServce": no kind of networking.istio.io; did you mean "VirtualService"?`,
		"apiVersion: v1\nkind: VirtualService\nmetadata: {name: a}":                        `refused: m.yaml:1: VirtualService default/a: apiVersion: "v1": no API version of VirtualService; use networking.istio.io/v1`,
		"apiVersion: networking.istio.oi/v1\nkind: VirtualService\nmetadata: {name: a}": "refused: m.yaml:1: VirtualService " +
			"default/a: apiVersion",
		"apiVersion: networking.istio.io/v2\nkind: VirtualService\nmetadata: {name: a}": "refused: m.yaml:1: VirtualService " +
			"default/a: apiVersion: \"networking.istio.io/v2\": version is not served",
		"apiVersion: networking/v1\nkind: VirtualService\nmetadata: {name: a}":        `refused: m.yaml:1: VirtualService default/a: apiVersion: "networking/v1": no API version of VirtualService; use networking.istio.io/v1`,
		"apiVersion: istio.io/v1\nkind: Gateway\nmetadata: {name: a}":                 `refused: m.yaml:1: Gateway default/a: apiVersion: "istio.io/v1": no API version of Gateway; use networking.istio.io/v1`,
		"apiVersion: security.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}": `refused: m.yaml:1: VirtualService default/a: apiVersion: "security.istio.io/v1": no API version of VirtualService; use networking.istio.io/v1`,
		"apiVersion: apps/v9\nkind: Deployment\nmetadata: {name: a}":                  `refused: m.yaml:1: Deployment default/a: apiVersion: "apps/v9": version is not served for Deployment; use apps/v1`,
		"apiVersion: apps/v1\nkind: Deploymnt\nmetadata: {name: a}":                   "did you mean apps/v1 Deployment?",
		"apiVersion: v1\nkind: Servce\nmetadata: {name: a}":                           `kind: "Servce": no kind of v1; did you mean "Service"?`,
		"apiVersion: v1\nkind: LimitRange\nmetadata: {name: a}": "LimitRange a: kind: v1 LimitRange: " +
			"nobody reads this kind",
		"apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}": "nobody reads this kind; did you mean " +
			"v1 Service?",
	} {
		docs, _ := manifest.Parse("m.yaml", []byte(text))
		_, err := Document(docs[0])
		got := "accepted"
		var unread *UnreadError
		switch {
		case errors.As(err, &unread):
			got = err.Error()
			if !errors.Is(err, ErrIgnored) {
				t.Errorf("%s is no ErrIgnored", got)
			}
		case err != nil:
			got = "refused: " + err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}
