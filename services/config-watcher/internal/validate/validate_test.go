package validate

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// judge decodes one document and returns its problems, one a line.
func judge(t testing.TB, yaml string) (*object.Object, string) {
	t.Helper()
	docs, problems := manifest.Parse("f.yaml", []byte(yaml))
	if len(problems) > 0 {
		return nil, problems.Error()
	}
	if len(docs) != 1 {
		t.Fatalf("%d documents", len(docs))
	}
	o, err := Document(docs[0])
	if err != nil {
		return nil, err.Error()
	}
	return o, ""
}

// expect checks the result of a document: want is a regular expression for the problems, or after "warns: " for the
// warnings of an accepted object; "" means accepted without warnings.
func expect(t *testing.T, yaml, want string) {
	t.Helper()
	o, got := judge(t, yaml)
	if warning, ok := strings.CutPrefix(want, "warns: "); ok && o != nil {
		want, got = warning, o.Warnings.Error()
	} else if ok {
		want = "^$"
	}
	if want == "" && got != "" || !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("got  %.500s\nwant %s", got, want)
	}
}

// object of a kind with a spec.
func of(kind, spec string) string {
	group := map[string]string{"PeerAuthentication": "security.istio.io/v1", "AuthorizationPolicy": "security.istio.io/v1",
		"RequestAuthentication": "security.istio.io/v1",
		"WasmPlugin":            "extensions.istio.io/v1alpha1", "EnvoyFilter": "networking.istio.io/v1alpha3", "Service": "v1", "Pod": "v1",
		"ConfigMap": "v1"}[kind]
	if group == "" {
		group = "networking.istio.io/v1"
	}
	return "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: server, namespace: apps}\nspec: " + spec + "\n"
}

func TestStrictDecoding(t *testing.T) {
	cases := []struct{ name, yaml, want string }{
		{"unknown field in a list", of("VirtualService", "{hosts: [a], http: [{route: [{destination: {host: a}}], timout: 1s}]}"),
			`^f.yaml:4: VirtualService apps/server: spec\.http\[0\]\.timout: unknown field "timout"; did you mean "timeout"\?$`},
		{"unknown field without a near one", of("VirtualService", "{hosts: [a], zzz: 1}"),
			`spec\.zzz: unknown field "zzz"; remove it, or use one of hosts, gateways`},
		{"unknown top-level field", of("VirtualService", "{hosts: [a]}") + "specs: {}", `: specs: unknown field "specs"; did you mean "spec"`},
		{"unknown metadata", "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: a, label: {}}\nspec: {}",
			`metadata.label: unknown field "label"; did you mean "labels"`},
		{"kubernetes unknown field", of("Service", "{prts: []}"), `Service apps/server: spec\.prts: unknown field "prts"; did you mean "ports"`},
		{"kubernetes unknown field in a list", of("Service", "{ports: [{port: 80, targtPort: 1}]}"),
			`spec\.ports\[0\]\.targtPort: unknown field "targtPort"; did you mean "targetPort"`},
		{"wrong type: list", of("VirtualService", "{hosts: a}"), `spec\.hosts: "a": expected a list, found a string`},
		{"wrong type: object", of("VirtualService", "{hosts: [a], http: [1]}"), `spec\.http\[0\]: 1: expected an object`},
		{"wrong type: string", of("VirtualService", "{hosts: [1]}"), `spec\.hosts\[0\]: 1: expected a string, found a number`},
		{"wrong type: number", of("VirtualService", "{hosts: [a], http: [{route: [{destination: {host: a}, weight: much}]}]}"),
			`route\[0\]\.weight: "much": expected a whole number`},
		{"fraction", of("VirtualService", "{hosts: [a], http: [{route: [{destination: {host: a}, weight: 1.5}]}]}"),
			`weight: 1.5: expected a whole number`},
		{"out of range", of("VirtualService", "{hosts: [a], http: [{route: [{destination: {host: a}, weight: 5000000000}]}]}"),
			`weight: 5000000000: out of range`},
		{"unknown enum", of("DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {simple: ROUND_ROBBIN}}}"),
			`simple: "ROUND_ROBBIN": unknown value; did you mean "ROUND_ROBIN"`},
		{"two of a choice", of("VirtualService",
			"{hosts: [a], http: [{match: [{uri: {exact: /, prefix: /a}}], route: [{destination: {host: a}}]}]}"),
			`uri\.prefix: cannot be set together with exact`},
		{"bad duration", of("VirtualService", "{hosts: [a], http: [{route: [{destination: {host: a}}], timeout: 3}]}"),
			`timeout: 3: expected a duration`},
		{"duration without unit", of("VirtualService", `{hosts: [a], http: [{route: [{destination: {host: a}}], timeout: "3"}]}`),
			`timeout: "3": not a duration`},
		{"null in list", of("VirtualService", "{hosts: [a], http: [null]}"), `spec\.http\[0\]: item is empty`},
		{"duplicate key", of("VirtualService", "{hosts: [a], hosts: [b]}"), `not valid YAML: .*already set`},
		{"version", "apiVersion: networking.istio.io/v2\nkind: Gateway\nmetadata: {name: a}\nspec: {}",
			`apiVersion: "networking.istio.io/v2": version is not served for Gateway; use networking.istio.io/v1`},
		{"kind", "apiVersion: networking.istio.io/v1\nkind: VirtualServices\nmetadata: {name: a}\nspec: {}",
			`kind: "VirtualServices": no kind of networking.istio.io; did you mean "VirtualService"`},
		{"no name", "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {}\nspec: {}",
			`Gateway default/\(unnamed\): metadata.name: missing`},
		{"no metadata", "apiVersion: networking.istio.io/v1\nkind: Gateway\nspec: {}", `metadata: missing or no object`},
		{"bad name", "apiVersion: v1\nkind: Pod\nmetadata: {name: ../../etc}\nspec: {containers: []}",
			`metadata.name: "../../etc": not a valid name`},
		{"namespace on a cluster kind", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: b}",
			`metadata.namespace: "b": Namespace has no namespace`},
		{"no kind", "apiVersion: v1\nmetadata: {name: a}", `kind: missing`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, got := judge(t, c.yaml)
			if !regexp.MustCompile("(?m)" + c.want).MatchString(got) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestIgnoredKinds(t *testing.T) {
	for _, yaml := range []string{
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {whatever: 1}",
		"apiVersion: gateway.networking.x-k8s.io/v1alpha1\nkind: XBackend\nmetadata: {name: a}",
		"apiVersion: v1\nkind: Event\nmetadata: {name: a}",
	} {
		docs, _ := manifest.Parse("", []byte(yaml))
		if _, err := Document(docs[0]); !errors.Is(err, ErrIgnored) {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}

func TestDurationsInGoForm(t *testing.T) {
	o, problems := judge(t, of("VirtualService",
		"{hosts: [a], http: [{route: [{destination: {host: a}}], timeout: 10ms, retries: {attempts: 1, perTryTimeout: 1m30s}}]}"))
	if problems != "" {
		t.Fatal(problems)
	}
	r := o.Body.(*networking.VirtualService).Http[0]
	if r.Timeout.AsDuration().String() != "10ms" || r.Retries.PerTryTimeout.AsDuration().String() != "1m30s" {
		t.Errorf("%v", r)
	}
}

func TestEveryProblemOfABatchIsReported(t *testing.T) {
	_, got := judge(t, of("VirtualService",
		`{hosts: ["a..b"], http: [{route: [{destination: {host: "*"}, weight: -5}], timeout: 0s, fault: {abort: {httpStatus: 99}}}]}`))
	for _, want := range []string{`hosts\[0\]`, `destination\.host`, `weight: -5: weight is negative`, `timeout`, `httpStatus`} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
}

// TestMeshConfigOfAnObject: a problem of the mesh configuration names its place in the ConfigMap.
func TestMeshConfigOfAnObject(t *testing.T) {
	_, got := judge(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    "+
		"rootNamespace: Not A Name\n")
	if !strings.Contains(got, `data.mesh.rootNamespace: "Not A Name": not a namespace`) {
		t.Error(got)
	}
}
