package authzview_test

import (
	"testing"

	"fairlead.dev/services/installer/internal/authzview"
)

// TestInjection: files have Pods before injection, which say by labels and annotations what it makes of them.
func TestInjection(t *testing.T) {
	const strict = "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: shop}\n" +
		"spec: {mtls: {mode: STRICT}}\n"
	deployment := func(metadata, containers string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: server, namespace: shop}\n" +
			"spec: {template: {metadata: {" + metadata + "}, spec: {containers: [" + containers + "]}}}\n"
	}
	const deny = "action: DENY, rules: [{from: [{source: {notNamespaces: [x]}}]}]"
	const byTemplate, off = "annotations: {inject.istio.io/templates: gateway}", "{sidecar.istio.io/inject: 'false'}"
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"sidecar":       {deployment("labels: {a: b}", "{name: app}"), []string{"denied", "takes mutual TLS alone"}},
		"gateway":       {deployment(byTemplate, "{name: app}"), []string{"denied", "rule 0 of AuthorizationPolicy shop/p (DENY) matches"}},
		"gateway, auto": {deployment(byTemplate, "{name: istio-proxy, image: auto}"), []string{"denied", "rule 0"}},
		"off by label": {deployment("labels: "+off, "{name: app}"),
			[]string{"allowed", `server.shop has no proxy (sidecar.istio.io/inject: "false"), so nothing enforces`}},
		"off": {deployment("annotations: "+off, "{name: app}"), []string{"allowed", "nothing enforces policies there"}},
		"the label goes first": {deployment("labels: {sidecar.istio.io/inject: 'true'}, annotations: "+off, "{name: app}"),
			[]string{"denied", "takes mutual TLS alone"}},
		"injected by hand": {deployment("labels: "+off, "{name: istio-proxy}"), []string{"denied", "takes mutual TLS alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			mustAnswer(t, check(t, load(t, c.object+strict+policy("p", deny)), "outside", "server", authzview.Request{}), c.want...)
		})
	}
	caller, err := load(t, deployment("labels: "+off, "{name: app}")).Caller("server", "")
	if err != nil || caller.Principal != "" || len(caller.Notes) != 1 {
		t.Errorf("%+v, %v", caller, err)
	}
}
