package validate

import (
	"regexp"
	"testing"

	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
)

func TestOnDemandInProxyConfig(t *testing.T) {
	proxyConfig := func(spec string) string {
		return "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: lean, namespace: apps}\nspec: " + spec + "\n"
	}
	for _, c := range []struct{ name, spec, want, problem string }{
		{"on", "{selector: {matchLabels: {app: a}}, onDemand: true, environmentVariables: {A: b}}", "true", ""},
		{"off", "{onDemand: false}", "false", ""},
		{"as a variable", `{environmentVariables: {FAIRLEAD_ON_DEMAND: "true"}}`, "true", ""},
		{"text", `{onDemand: "true"}`, "", `^f.yaml:4: ProxyConfig apps/lean: spec.onDemand: "true": expected true or false, found a string`},
		{"bad variable", "{environmentVariables: {FAIRLEAD_ON_DEMAND: maybe}}", "",
			`spec.environmentVariables.FAIRLEAD_ON_DEMAND: "maybe": neither true nor false`},
		{"concurrency", "{concurrency: -1}", "", `spec.concurrency: -1: negative`},
		{"unknown", "{lean: true}", "", `unknown field "lean"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, problem := judge(t, proxyConfig(c.spec))
			if c.problem != "" {
				if !regexp.MustCompile(c.problem).MatchString(problem) {
					t.Errorf("got  %s\nwant %s", problem, c.problem)
				}
				return
			}
			if problem != "" {
				t.Fatal(problem)
			}
			if got := o.Body.(*networkingv1beta1.ProxyConfig).EnvironmentVariables[object.OnDemandMetadata]; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestOnDemandAnnotations(t *testing.T) {
	pod := func(annotations string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: a-1, namespace: apps, annotations: " + annotations + "}\nspec: {containers: []}\n"
	}
	entry := func(annotations string) string {
		return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: apps, annotations: " + annotations +
			"}\nspec: {address: 10.0.0.1}\n"
	}
	for _, c := range []struct{ name, yaml, problem string }{
		{"Pod", pod(`{fairlead.dev/on-demand: "true"}`), ""},
		{"Pod: neither", pod(`{fairlead.dev/on-demand: "on"}`),
			`^f.yaml:3: Pod apps/a-1: metadata.annotations\["fairlead.dev/on-demand"\]: "on": neither true nor false; write "true" or "false"$`},
		{"WorkloadEntry", entry(`{fairlead.dev/on-demand: "false"}`), ""},
		{"WorkloadEntry: empty", entry(`{fairlead.dev/on-demand: ""}`), `WorkloadEntry apps/vm: .*"": neither true nor false`},
		{"ProxyConfig", pod(`{proxy.istio.io/config: "onDemand: true\nfromTheFuture: 1"}`), ""},
		{"ProxyConfig: text", pod(`{proxy.istio.io/config: "onDemand: some"}`),
			`metadata.annotations\["proxy.istio.io/config"\].onDemand: "some": expected true or false`},
		{"ProxyConfig: no object", pod(`{proxy.istio.io/config: "[1"}`), `no YAML of an object; write a ProxyConfig in YAML`},
		{"another annotation", pod(`{fairlead.dev/other: "on"}`), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := judge(t, c.yaml)
			if c.problem == "" && got != "" || c.problem != "" && !regexp.MustCompile(c.problem).MatchString(got) {
				t.Errorf("got  %s\nwant %s", got, c.problem)
			}
		})
	}
}
