package whole

import (
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/object"
)

// TestGatewaysOfTenants: a mesh has tenants if the command says so or the control plane's config-watcher does, and its
// root namespace, to which tenancy does not apply, is the one that the mesh configuration names.
func TestGatewaysOfTenants(t *testing.T) {
	const gateway = `
{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: edge}, spec: {selector: {app: edge}, ports: [{name: http, port: 80}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, spec: {gatewayClassName: istio,
addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}], listeners: [{name: l, port: 80, protocol: HTTP}]}}
---
`
	watcher := func(namespace, args string) string {
		return "{apiVersion: apps/v1, kind: Deployment, metadata: {name: config-watcher, namespace: " + namespace +
			"}, spec: {template: {spec: {containers: [{name: config-watcher, image: a, args: [" + args + "]}]}}}}\n---\n"
	}
	root := "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: shop'}}\n---\n"
	for name, tc := range map[string]struct {
		cfg     Config
		yaml    string
		refused bool
	}{
		"nothing says so":                      {Config{}, "", false},
		"the command says so":                  {Config{MultiTenant: true}, "", true},
		"the config-watcher says so":           {Config{}, watcher("istio-system", "run, --multi-tenant"), true},
		"the config-watcher does not":          {Config{}, watcher("istio-system", "--multi-tenant=false"), false},
		"somebody else's program says so":      {Config{}, watcher("shop", "--multi-tenant"), false},
		"the Gateway is in the root namespace": {Config{MultiTenant: true}, root, false},
	} {
		t.Run(name, func(t *testing.T) {
			refused := false
			for _, m := range analyzed(t, tc.cfg, nil, gateway+tc.yaml).Messages {
				refused = refused || m.Code == finding.GatewayNotAccepted && m.Key.Name == "g" && m.Field == "spec.addresses[0].value"
			}
			if refused != tc.refused {
				t.Errorf("the Gateway is refused: %v", refused)
			}
		})
	}
}

// TestReferencedByTheGatewayAPI: what an API server has to be asked for beside the kinds that are listed.
func TestReferencedByTheGatewayAPI(t *testing.T) {
	m := New(Config{})
	if refs, root := m.Referenced(); refs != nil || root != "" {
		t.Errorf("without objects of the Gateway API: %v, %q", refs, root)
	}
	m.content("a.yaml", []byte(`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, spec: {gatewayClassName: istio,
infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: own}}, listeners: [{name: l, port: 443, protocol: HTTPS,
tls: {certificateRefs: [{name: cert}, {name: foreign, namespace: other}]}}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: root'}}
`))
	refs, root := m.Referenced()
	want := []object.Key{{Kind: "ConfigMap", Namespace: "shop", Name: "own"}, {Kind: "Secret", Namespace: "shop", Name: "cert"}}
	if len(refs) != 2 || refs[0] != want[0] || refs[1] != want[1] || root != "root" {
		t.Errorf("refers to %v, with defaults in %q", refs, root)
	}
}
