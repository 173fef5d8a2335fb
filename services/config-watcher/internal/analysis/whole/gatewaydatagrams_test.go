package whole

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// TestClosedPortsOfUDP tells which AuthorizationPolicies close a port of UDP of a Gateway: the one that its Pods listen
// on.
func TestClosedPortsOfUDP(t *testing.T) {
	const mesh = `
{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: infra}, spec: {selector: {app: edge},
ports: [{name: udp, port: 53, protocol: UDP, targetPort: 5353}, {name: tcp, port: 53, targetPort: 5300}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: edge, namespace: infra, labels: {app: edge, tier: front}}, spec: {containers: [{name: istio-proxy, image: a}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: infra}, spec: {gatewayClassName: istio,
addresses: [{type: Hostname, value: edge}], listeners: [{name: tcp, port: 53, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: NAMESPACE}, spec: {SPEC}}
`
	port := func(n string) string { return "to: [{operation: {ports: ['" + n + "']}}]" }
	for name, tc := range map[string]struct {
		namespace, spec string
		closed          bool
	}{
		"DENY of a source":            {"infra", "action: DENY, rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]", true},
		"DENY of another port":        {"infra", "action: DENY, rules: [{" + port("80") + "}]", false},
		"DENY of the Service's port":  {"infra", "action: DENY, rules: [{" + port("53") + "}]", false},
		"DENY of the Pod's port":      {"infra", "action: DENY, rules: [{" + port("5353") + "}]", true},
		"ALLOW of nothing":            {"infra", "", true},
		"ALLOW of everything":         {"infra", "rules: [{}]", false},
		"ALLOW of the port":           {"infra", "rules: [{" + port("5353") + "}]", false},
		"for the workload":            {"infra", "selector: {matchLabels: {tier: front}}", true},
		"for others":                  {"infra", "selector: {matchLabels: {tier: back}}", false},
		"of the root namespace":       {"istio-system", "", true},
		"of a namespace that is none": {"shop", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, m := range analyzed(t, Config{}, nil, strings.NewReplacer("NAMESPACE", tc.namespace, "SPEC", tc.spec).Replace(mesh)).Messages {
				if m.Code == finding.DatagramsDropped {
					got = append(got, m.Key.Name+" "+m.Field+" "+m.Reason)
				}
			}
			want := "g spec.listeners[1] AuthorizationPolicy " + tc.namespace + "/p decides about datagrams to port 5353"
			if text := strings.Join(got, "\n"); strings.HasPrefix(text, want) != tc.closed || !tc.closed && text != "" {
				t.Errorf("says %q", text)
			}
		})
	}
}
