package inject_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/inject"
)

func TestAnApplicationAsTheProxysUserIsAWarning(t *testing.T) {
	config := configOf(t, "")
	for name, tc := range map[string]struct{ spec, want string }{
		"another user":      {"containers: [{name: web, image: a, securityContext: {runAsUser: 1000}}]", ""},
		"the proxy's user":  {"containers: [{name: web, image: a, securityContext: {runAsUser: 1337}}]", "container web has runAsUser 1337"},
		"the Pod's user":    {"securityContext: {runAsUser: 1337}\ncontainers: [{name: web, image: a}]", "container web has runAsUser 1337"},
		"its own user":      {"securityContext: {runAsUser: 1337}\ncontainers: [{name: web, image: a, securityContext: {runAsUser: 7}}]", ""},
		"the proxy's group": {"containers: [{name: web, image: a, securityContext: {runAsGroup: 1337}}]", "container web has runAsGroup 1337"},
		"an init container, which runs before the proxy": {"initContainers: [{name: i, image: a, securityContext: {runAsUser: 1337}}]\n" + app,
			""},
		"a changed proxy": {"containers: [{name: web, image: a}, {name: istio-proxy, image: auto, securityContext: {runAsUser: 1337}}]", ""},
	} {
		warnings := strings.Join(injected(t, config, inject.Request{Pod: podOf(t, "", tc.spec)}).Warnings, "\n")
		if !strings.Contains(warnings, tc.want) || tc.want == "" && warnings != "" {
			t.Errorf("%s: warnings %q, want %q", name, warnings, tc.want)
		}
	}
}
