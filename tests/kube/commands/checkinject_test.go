package commands

import (
	"strings"
	"testing"
)

// TestWhichInjectorIsAsked compares the answers for Pods, templates and labels, and those for what is not there.
func TestWhichInjectorIsAsked(t *testing.T) {
	s := start(t)
	s.Apply(t, injector("default"))
	s.Apply(t, injector("canary"))
	s.Apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: meshed, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews, namespace: meshed}
spec: {selector: {matchLabels: {app: reviews}}, template: {metadata: {labels: {app: reviews}}, spec: {containers: [{name: a, image: x}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: out, namespace: meshed}
spec: {selector: {matchLabels: {app: out}}, template: {metadata: {labels: {app: out, sidecar.istio.io/inject: "false"}}, spec: {containers: [{name: a, image: x}]}}}
`)
	for command, want := range map[string][]string{
		"-n meshed deployment/reviews": {"istio-sidecar-injector          default    yes", "the namespace's istio-injection=enabled",
			"istio-sidecar-injector-canary   canary     no"},
		"deploy/out.meshed": {"istio-sidecar-injector          default    no", "the Pod's sidecar.istio.io/inject=false"},
		"-n plain -l app=a": {"default    no",
			"a namespace without istio-injection and istio.io/rev, and a Pod without sidecar.istio.io/inject"},
		"-n plain -l istio.io/rev=canary,app=a":    {"istio-sidecar-injector-canary   canary     yes", "the Pod's istio.io/rev=canary"},
		"-n plain -l sidecar.istio.io/inject=true": {"default    yes"},
	} {
		out, _ := does(t, s, 0, append([]string{"x", "check-inject"}, strings.Fields(command)...)...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("check-inject %s: %q is not in\n%s", command, w, out)
			}
		}
	}
	for command, want := range map[string]string{
		"reviews.mehsed":              `there is no namespace mehsed; did you mean "meshed"?`,
		"-n meshed deployment/review": "there is no Deployment review in namespace meshed",
		"web-1.meshed":                "there is no Pod web-1 in namespace meshed",
		"-n mehsed -l app=a":          `there is no namespace mehsed; did you mean "meshed"?`,
	} {
		if _, said := does(t, s, 1, append([]string{"check-inject"}, strings.Fields(command)...)...); !strings.Contains(said, want) {
			t.Errorf("check-inject %s: %q is not in %s", command, want, said)
		}
	}
	for _, command := range []string{"check-inject", "check-inject job/x", "check-inject web -l a=b"} {
		does(t, s, 2, strings.Fields(command)...)
	}
}
