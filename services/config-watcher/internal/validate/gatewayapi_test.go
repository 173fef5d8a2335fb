package validate

import (
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/gatewayapi"
)

// gatewayObject is an object of the Gateway API.
func gatewayObject(version, kind, spec string) string {
	return "apiVersion: gateway.networking.k8s.io/" + version + "\nkind: " + kind + "\nmetadata:\n  name: a\n  namespace: shop\nspec:\n  " +
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

// TestGatewayAPI: what the definitions say of an object holds in files, in the house's form of an error.
func TestGatewayAPI(t *testing.T) {
	const route = "parentRefs: [{name: a}]\nrules:\n- "
	for _, c := range []struct{ version, kind, spec, want string }{
		{"v1", "HTTPRoute", route + "backendRefs: [{name: a, port: 80}]", ""},
		{"v1beta1", "HTTPRoute", route + "backendRefs: [{name: a, port: 80}]", ""},
		{"v1", "HTTPRoute", route + "backendRefs: [{name: a}]", `^f\.yaml:9: HTTPRoute shop/a: spec\.rules\[0\]\.backendRefs\[0\]: ` +
			`Must have port for Service reference; see the Gateway API's reference of HTTPRoute$`},
		{"v1", "HTTPRoute", route + "backendRefs: [{name: a, port: 70000}]", `^f\.yaml:9: HTTPRoute shop/a: ` +
			`spec\.rules\[0\]\.backendRefs\[0\]\.port: 70000: should be less than or equal to 65535; see`},
		{"v1", "HTTPRoute", route + "matches: [{path: {type: Exakt}}]", `path\.type: "Exakt": unknown value; use one of Exact, PathPrefix, ` +
			`RegularExpression$`},
		{"v1", "HTTPRoute", route + "naem: x\n  filters: [{type: URLRewrite}]", `(?s)spec\.rules\[0\]\.filters\[0\]: filter\.urlRewrite must be ` +
			`specified for URLRewrite filter\.type; .*f\.yaml:9: HTTPRoute shop/a: spec\.rules\[0\]\.naem: unknown field "naem"; did you mean ` +
			`"name"\?$`},
		{"v1", "HTTPRoute", "hostnames: [3]", `^f\.yaml:7: HTTPRoute shop/a: spec\.hostnames\[0\]: must be of type string, found integer; see`},
		{"v1", "HTTPRoute", "rules: []", `spec\.rules: .*at least 1 items`},
		{"v1", "TLSRoute", "rules: [{backendRefs: [{name: a, port: 1}]}]", `spec\.hostnames: missing; see`},
		{"v1alpha2", "TLSRoute", "rules: [{backendRefs: [{name: a, port: 1}]}]", ""},
		{"v1", "TCPRoute", "rules: [{backendRefs: [{name: a, port: 1}]}, {backendRefs: [{name: a, port: 1}]}]", `spec\.rules: .*at most 1 item;`},
		{"v1alpha2", "TCPRoute", "rules: [{backendRefs: [{name: a, port: 1}]}, {backendRefs: [{name: a, port: 1}]}]", ""},
		{"v1", "Gateway", "gatewayClassName: istio\nlisteners: [{name: a, port: 80, protocol: HTTP}, {name: a, port: 81, protocol: HTTP}]",
			`(?s)^f\.yaml:8: Gateway\.gateway\.networking\.k8s\.io shop/a: spec\.listeners\[1\]: stands in the list before; keep one of them`},
		{"v1", "BackendTLSPolicy", "targetRefs: [{group: '', kind: Service, name: a}]\nvalidation: {hostname: a.example}",
			`must not contain both|must specify either`},
		{"v1", "ListenerSet", "parentRef: {name: a}\nlisteners: [{name: a, port: 80, protocol: HTTP}]", ""},
		{"v1", "ReferenceGrant", "from: [{group: a, kind: b, namespace: c}]\nto: [{group: '', kind: Secret}]", ""},
		{"v2", "HTTPRoute", route + "backendRefs: [{name: a, port: 80}]", `version is not served for HTTPRoute; use gateway\.networking\.k8s\.io/v1$`},
	} {
		expect(t, gatewayObject(c.version, c.kind, c.spec), c.want)
	}
	expect(t, "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: a, namespace: b}, spec: {controllerName: a/b}}",
		`metadata\.namespace: "b": GatewayClass has no namespace`)
}

// TestGatewayAPIDefaults: an object has the defaults of its definition, whichever version it is of.
func TestGatewayAPIDefaults(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		o, problems := judge(t, gatewayObject(version, "HTTPRoute", "parentRefs: [{name: a}]\nrules: [{backendRefs: [{name: a, port: 80}]}]")+
			"status: {anything: 1}\n")
		if o == nil {
			t.Fatal(problems)
		}
		route, ok := o.Body.(*gatewayv1.HTTPRoute)
		if !ok {
			t.Fatalf("%T", o.Body)
		}
		rule, parent := route.Spec.Rules[0], route.Spec.ParentRefs[0]
		if *parent.Group != gatewayv1.GroupName || *parent.Kind != "Gateway" || *rule.BackendRefs[0].Weight != 1 ||
			*rule.BackendRefs[0].Kind != "Service" || *rule.Matches[0].Path.Value != "/" ||
			*rule.Matches[0].Path.Type != gatewayv1.PathMatchPathPrefix {
			t.Errorf("%s: %+v", version, route.Spec)
		}
	}
}

// TestGatewayAPIWithoutEffect: accepted fields that nothing reads are named.
func TestGatewayAPIWithoutEffect(t *testing.T) {
	const rule = "rules: [{backendRefs: [{name: a, port: 80}], sessionPersistence: {sessionName: a}}]"
	for spec, want := range map[string]string{
		rule: "spec.rules[0].sessionPersistence: has no effect: it is experimental, and not supported; remove it",
		"useDefaultGateways: All\nrules: [{backendRefs: [{name: a, port: 80}]}]":  "spec.useDefaultGateways: has no effect: it is",
		"useDefaultGateways: None\nrules: [{backendRefs: [{name: a, port: 80}]}]": "",
	} {
		o, problems := judge(t, gatewayObject("v1", "HTTPRoute", spec))
		if o == nil {
			t.Fatal(problems)
		}
		if got := o.Warnings.Error(); !strings.Contains(got, want) || (len(o.Warnings) > 0) != (want != "") {
			t.Errorf("%s: warns %q, want %q", spec, got, want)
		}
	}
}

// TestGatewayAPIOfAnAPIServer: an API server may have newer definitions. Its objects are taken with their known fields,
// and what is left out is named.
func TestGatewayAPIOfAnAPIServer(t *testing.T) {
	text := gatewayObject("v1", "HTTPRoute", "rules: [{soon: {a: 1}, backendRefs: [{name: a}], matches: [{path: {type: Soon}}]}]")
	docs, _ := manifest.Parse("", []byte(text))
	o, err := Served(docs[0])
	if err != nil {
		t.Fatal(err)
	}
	if got := o.Warnings.Error(); !strings.HasPrefix(got, `HTTPRoute shop/a: spec.rules[0].soon: is left out: unknown field "soon"`) ||
		len(o.Warnings) != 1 {
		t.Errorf("warnings %s", got)
	}
	if rule := o.Body.(*gatewayv1.HTTPRoute).Spec.Rules[0]; *rule.BackendRefs[0].Weight != 1 || *rule.Matches[0].Path.Type != "Soon" {
		t.Errorf("%+v", rule)
	}
	docs, _ = manifest.Parse("", []byte(gatewayObject("v1", "HTTPRoute", "rules: 3")))
	if _, err := Served(docs[0]); err == nil || !strings.Contains(err.Error(), "HTTPRoute shop/a: cannot be decoded: ") {
		t.Errorf("no list: %v", err)
	}
}

// TestEveryGatewayKindHasASchema: of each of the versions that the table has.
func TestEveryGatewayKindHasASchema(t *testing.T) {
	for _, name := range kinds.NamesOf(kinds.GroupGatewayAPI) {
		want := kinds.Find(kinds.GroupGatewayAPI, name).Versions
		got, err := gatewayapi.Versions(name)
		if err != nil || strings.Join(got, " ") == "" || len(got) != len(want) {
			t.Errorf("%s: schemas of %v, the table has %v (%v)", name, got, want, err)
		}
		for _, v := range want {
			if !strings.Contains(" "+strings.Join(got, " ")+" ", " "+v+" ") {
				t.Errorf("%s has no schema of %s", name, v)
			}
		}
	}
}
