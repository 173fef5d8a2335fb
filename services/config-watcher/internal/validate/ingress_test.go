package validate

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

func anIngress(spec string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: shop, namespace: apps}\nspec: " + spec + "\n"
}

func TestIngressIsCheckedAsByKubernetes(t *testing.T) {
	path := func(p string) string { return anIngress("{rules: [{host: a.b, http: {paths: [{" + p + "}]}}]}") }
	const to = "backend: {service: {name: a, port: {number: 80}}}"
	backend := func(b string) string { return path("path: /, pathType: Prefix, backend: " + b) }
	host := func(h string) string {
		return anIngress("{rules: [{host: '" + h + "', http: {paths: [{path: /, pathType: Prefix, " + to + "}]}}]}")
	}
	class := func(spec string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: c}\nspec: " + spec
	}
	for name, tc := range map[string]struct{ yaml, want string }{
		"a whole one": {
			anIngress("{ingressClassName: c, defaultBackend: {service: {name: a, port: {name: web}}}, rules: [{http: {paths: [{path: /a/b, " +
				"pathType: Exact, " + to +
				"}, {pathType: ImplementationSpecific, " + to +
				"}]}}, {host: '*.a.b'}], tls: [{hosts: [a.b, '*.c.d'], secretName: s}]}\nstatus: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}"), "^$"},
		"nothing in it":                   {anIngress("{}"), `spec: neither rules nor a defaultBackend`},
		"an unknown field":                {anIngress("{rulez: []}"), `spec\.rulez: unknown field "rulez"; did you mean "rules"`},
		"a host in upper case":            {host("A.b"), `spec\.rules\[0\]\.host: "A\.b": not a host`},
		"a host that is an address":       {host("10.0.0.1"), `spec\.rules\[0\]\.host.*an IP address`},
		"a wildcard within a host":        {host("a.*.b"), `not a host`},
		"a wildcard alone":                {host("*"), `not a host`},
		"two wildcards":                   {host("*.*.b"), `not a host`},
		"a wildcard label":                {host("*.b"), "^$"},
		"no paths":                        {anIngress("{rules: [{http: {paths: []}}]}"), `spec\.rules\[0\]\.http\.paths: missing`},
		"neither paths nor a backend":     {anIngress("{rules: [{host: a.b}]}"), `warns: spec\.rules\[0\]: has no effect: it has no paths`},
		"no type of path":                 {path("path: /, " + to), `paths\[0\]\.pathType: missing`},
		"an unknown type of path":         {path("path: /, pathType: Prefixed, " + to), `unknown type of paths; did you mean "Prefix"`},
		"a path without a slash":          {path("path: a, pathType: Prefix, " + to), `paths\[0\]\.path: "a": does not begin with /`},
		"no path of type Exact":           {path("pathType: Exact, " + to), `does not begin with /`},
		"an encoded slash":                {path("path: /a%2Fb, pathType: Exact, " + to), `contains //`},
		"dots in a path":                  {path("path: /a/../b, pathType: Prefix, " + to), `contains //`},
		"dots at the end of a path":       {path("path: /a/.., pathType: Prefix, " + to), `ends with`},
		"a specific path without a slash": {path("path: a*, pathType: ImplementationSpecific, " + to), `does not begin with /`},
		"a specific path with an expression": {path("path: '/a(b)*', pathType: ImplementationSpecific, " + to),
			`warns: paths\[0\]\.path: is compared letter by letter`},
		"a specific prefix": {path("path: '/a/*', pathType: ImplementationSpecific, " + to), "^$"},
		"a query":           {path("path: '/a?b=c', pathType: Exact, " + to), `warns: compared with the path alone`},
		"one path twice": {anIngress("{rules: [{host: a.b, http: {paths: [{path: /a, pathType: Prefix, " + to +
			"}]}}, {host: a.b, http: {paths: [{path: /a/, pathType: Prefix, " + to + "}]}}]}"),
			`warns: spec\.rules\[1\]\.http\.paths\[0\]: has no effect: spec\.rules\[0\]\.http\.paths\[0\] has the same path`},
		"no backend": {path("path: /, pathType: Prefix"), `paths\[0\]\.backend\.service: missing`},
		"a resource": {backend("{resource: {kind: Bucket, name: b}}"),
			`backend\.resource: "Bucket b": a gateway sends requests to Services only`},
		"a resource and a service": {backend("{resource: {kind: Bucket, name: b}, service: {name: a, port: {number: 80}}}"),
			`both a service and a resource`},
		"a bad name of a service":        {backend("{service: {name: A_, port: {number: 80}}}"), `backend\.service\.name`},
		"no port":                        {backend("{service: {name: a}}"), `backend\.service\.port: missing`},
		"a port by name and number":      {backend("{service: {name: a, port: {name: b, number: 80}}}"), `both a name and a number`},
		"a port out of range":            {backend("{service: {name: a, port: {number: 65536}}}"), `port\.number: 65536: not a port`},
		"a default backend without port": {anIngress("{defaultBackend: {service: {name: a}}}"), `spec\.defaultBackend\.service\.port: missing`},
		"a TLS host that is none": {
			anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}, tls: [{hosts: [''], secretName: s}]}"),
			`spec\.tls\[0\]\.hosts\[0\]`},
		"a TLS entry without a Secret": {anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}, tls: [{hosts: [a.b]}]}"),
			`warns: spec\.tls\[0\]: has no effect: it names no Secret`},
		"a bad name of a Secret": {anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}, tls: [{secretName: A}]}"),
			`spec\.tls\[0\]\.secretName`},
		"a bad name of a class": {anIngress("{ingressClassName: '', defaultBackend: {service: {name: a, port: {number: 80}}}}"),
			`spec\.ingressClassName`},
		"a class by both ways": {strings.Replace(anIngress("{ingressClassName: c, defaultBackend: {service: {name: a, port: {number: 80}}}}"),
			"namespace: apps", "annotations: {kubernetes.io/ingress.class: istio}", 1),
			`warns: spec\.ingressClassName: has no effect: the annotation kubernetes\.io/ingress\.class decides`},
		"the name of a generated object": {strings.Replace(anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}}"), "shop",
			"a-"+object.GeneratedIngressInfix, 1), `metadata\.name.*generated objects`},
		"a version that is not served": {strings.Replace(anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}}"), "/v1",
			"/v1beta1", 1), `apiVersion.*version is not served`},
		"a class":                      {class("{controller: istio.io/ingress-controller, parameters: {kind: A, name: b}}"), "^$"},
		"a class without a controller": {class("{}"), `spec\.controller.*not the name of a controller`},
		"a class that may be the default": {strings.Replace(class("{controller: a.b/c}"), "name: c",
			"name: c, annotations: {ingressclass.kubernetes.io/is-default-class: yes-please}", 1),
			`warns: neither true nor false`},
	} {
		t.Run(name, func(t *testing.T) { expect(t, tc.yaml, tc.want) })
	}
}

func TestIngressIsKeptAsItIs(t *testing.T) {
	o, problems := judge(t, anIngress("{defaultBackend: {service: {name: a, port: {number: 80}}}}"))
	if problems != "" {
		t.Fatal(problems)
	}
	in, ok := o.Body.(*networkingv1.Ingress)
	if want := (object.Key{Group: kinds.GroupIngress, Kind: "Ingress", Namespace: "apps", Name: "shop"}); !ok || o.Key != want ||
		in.Spec.DefaultBackend.Service.Name != "a" {
		t.Errorf("read as %v, %T", o.Key, o.Body)
	}
}
