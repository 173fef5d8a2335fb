package main

import (
	"bytes"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
)

func TestMigrate(t *testing.T) {
	const in = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: shop, annotations: {kubernetes.io/ingress.class: istio}},
spec: {rules: [{host: a.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: other, namespace: shop,
	annotations: {kubernetes.io/ingress.class: nginx}},
spec: {rules: [{host: b.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}
`
	run := func(text string, args ...string) (out, diagnostics string, err error) {
		var stdout, stderr bytes.Buffer
		cmd := newMigrate()
		cmd.SetIn(strings.NewReader(text))
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetArgs(args)
		err = cmd.Execute()
		return stdout.String(), stderr.String(), err
	}
	out, diagnostics, err := run(in, "-", "--class", "fairlead")
	if err != nil || !strings.Contains(out, "kind: HTTPRoute") || !strings.Contains(out,
		"gatewayClassName: fairlead") || strings.Contains(out, "status") {
		t.Errorf("%v: %s", err, out)
	}
	for _, want := range []string{"stays: stdin:", "Ingress shop/other: spec.ingressClassName: is of a class",
		"replaced: Ingress shop/i\n", "remark: stdin:2: Ingress shop/i: Service shop/web is not among the objects; see that the mesh has it",
		"2 objects made, 1 replaced, 1 stay or are named; "} {
		if !strings.Contains(diagnostics, want) {
			t.Errorf("lacks %q: %s", want, diagnostics)
		}
	}
	if _, _, err := run(""); process.ExitCode(err) != process.ExitUsage {
		t.Error(err)
	}
	if _, _, err := run("{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a}, spec: {x: 1}}",
		"-"); process.ExitCode(err) != process.ExitRefused {
		t.Error(err)
	}
}
