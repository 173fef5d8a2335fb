package plan

import (
	"slices"
	"strings"
	"testing"
)

// TestWhatHasNoEffectIsNamedOnce has fields that need containers, and Services that select nothing.
func TestWhatHasNoEffectIsNamedOnce(t *testing.T) {
	deployment := func(name, container, pod string) string {
		return `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `, namespace: shop}
spec:
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}}
    spec: {containers: [{name: app, command: [app]` + container + `}]` + pod + `}
`
	}
	service := func(name, selector string) string {
		return "\n---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: {selector: {" + selector +
			"}, ports: [{port: 80}]}\n"
	}
	p := make1(t, deployment("a", ", resources: {limits: {cpu: 1}}, livenessProbe: {tcpSocket: {port: 1}}", "")+
		deployment("b", ", resources: {requests: {cpu: 1}}", ", hostAliases: [{ip: 127.0.0.1, hostnames: [x]}]")+
		service("a", "app: a")+service("vm", "app: vm")+service("lost", "app: lost")+`
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop}
spec: {address: 127.0.0.1, labels: {app: vm}}
`)
	want := []string{
		"livenessProbe of Deployment shop/a: has no effect on one machine",
		"resources of Deployment shop/a, shop/b: has no effect on one machine",
		"hostAliases of Deployment shop/b: has no effect on one machine",
		"Service shop/lost: spec.selector selects no Pod and no WorkloadEntry of the mesh files; calls to it are answered with 503",
	}
	if !slices.Equal(p.Warnings, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(p.Warnings, "\n"), strings.Join(want, "\n"))
	}
}
