package validate

import (
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

func mapping(t testing.TB) *profile.Mapping {
	t.Helper()
	pkg, err := profile.Open(fstest.MapFS{"charts/x": {}, "profiles/default.yaml": {}})
	if err != nil {
		t.Fatal(err)
	}
	return &pkg.Mapping
}

func check(t testing.TB, text string) (refused, warned []string) {
	t.Helper()
	spec, err := tree.ParseMap([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, p := range Check(spec, mapping(t)) {
		said := p.Path() + ": " + p.Text
		if p.Warning {
			warned = append(warned, said)
		} else {
			refused = append(refused, said)
		}
	}
	return refused, warned
}

// TestRefused holds what is refused: the whole list of problems, each with the field and what to write.
func TestRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"{hubb: a}":                               `hubb: unknown field; did you mean "hub"?`,
		`{hub: ""}`:                               "hub: it is empty",
		`{tag: ""}`:                               "tag: it is empty",
		"{hub: 3}":                                "hub: 3 must be a string; put it between quotes",
		"{hub: http://x}":                         `hub: "http://x" is no registry with a path`,
		"{tag: 'a:b'}":                            `tag: "a:b" is no tag of an image`,
		"{tag: {a: b}}":                           "tag: a mapping must be a string",
		"{revision: a.b}":                         `revision: "a.b" is no revision`,
		"{components: 1}":                         "components: 1 must be a mapping",
		"{components: {pilto: {}}}":               `components.pilto: unknown field; did you mean "pilot"?`,
		"{components: {pilot: 1}}":                "components.pilot: 1 must be a mapping",
		"{components: {pilot: {enabled: 1}}}":     "components.pilot.enabled: 1 must be true or false",
		"{components: {pilot: {name: x}}}":        "components.pilot.name: unknown field",
		"{components: {base: {hub: x}}}":          "components.base.hub: unknown field",
		"{components: {pilot: {namespace: A_B}}}": `components.pilot.namespace: "A_B" is no name of a namespace`,
		"{components: {ingressGateways: {}}}":     "components.ingressGateways: a mapping must be a list",
		"{components: {ingressGateways: [{}]}}":   "components.ingressGateways[0].name: an enabled item needs a name",
		"{components: {ingressGateways: [{name: a}, {name: a}]}}": `components.ingressGateways[1].name: "a" is the name of item 0, too`,
		"{components: {ingressGateways: [{name: A}]}}":            `components.ingressGateways[0].name: "A" is no name of an object`,
		"{components: {ingressGateways: [{name: a, k8s: {service: {ports: [{port: 80}]}}}]}}": "components.ingressGateways[0].k8s." +
			"service.ports[0].targetPort: 80 is below 1024",
		"{components: {pilot: {k8s: {replicas: 1}}}}": `components.pilot.k8s.replicas: unknown field`,
		"{components: {pilot: {k8s: {replicaCount: -1}}}}": "components.pilot.k8s.replicaCount: -1 " +
			"must be a whole number that is not negative",
		"{components: {pilot: {k8s: {replicaCount: 1.5}}}}": "components.pilot.k8s.replicaCount: 1.5 " +
			"must be",
		"{components: {pilot: {k8s: {resources: {requests: {cpu: abc}}}}}}": `components.pilot.k8s.resources.requests.cpu: "abc" is no quantity, such as 500m or 128Mi`,
		"{components: {pilot: {k8s: {env: [{nam: x}]}}}}":                   `components.pilot.k8s.env[0].nam: unknown field; did you mean "name"?`,
		"{components: {pilot: {k8s: {env: {a: b}}}}}": "components.pilot.k8s.env: a mapping must " +
			"be a list",
		"{components: {pilot: {k8s: {nodeSelector: {a: true}}}}}": "components.pilot.k8s.nodeSelector.a: " +
			"true must be a string",
		"{components: {pilot: {k8s: {readinessProbe: {httpGet: {prt: 1}}}}}}": `components.pilot.k8s.readinessProbe.httpGet.prt: unknown field; did you mean "port"?`,
		"{components: {pilot: {k8s: {overlays: [{kid: x}]}}}}":                `components.pilot.k8s.overlays[0].kid: unknown field; did you mean "kind"?`,
		"{components: {pilot: {k8s: {podDisruptionBudget: {minAvailable: 1, maxUnavailable: 1}}}}}": "components.pilot." +
			"k8s.podDisruptionBudget: minAvailable and maxUnavailable exclude each other",
		"{values: {globl: {}}}":                      `values.globl: unknown field; did you mean "global"?`,
		"{values: {global: {hub: 3}}}":               "values.global.hub: 3 must be a string",
		"{values: {global: {proxy: {tracer: foo}}}}": `values.global.proxy.tracer: "foo" must be one of zipkin`,
		"{values: {global: {imagePullSecrets: a}}}":  `values.global.imagePullSecrets: "a" must be a list`,
		"{values: {global: {proxy: {includeIPRanges: 10}}}}": "values.global.proxy.includeIPRanges: 10 " +
			"must be a string",
		"{values: {global: {proxy: {includeIPRanges: '10.0.0.0/33'}}}}": `values.global.proxy.includeIPRanges: "10.0.0.0/33" is no network`,
		"{values: {global: {proxy: {excludeInboundPorts: '80,x'}}}}":    `values.global.proxy.excludeInboundPorts: "x" is no port`,
		"{values: {pilot: {autoscaleMin: x}}}":                          `values.pilot.autoscaleMin: "x" must be a whole number`,
		"{values: {pilot: {keepaliveMaxServerConnectionAge: soon}}}":    `values.pilot.keepaliveMaxServerConnectionAge: "soon" must be a duration`,
		"{values: {pilot: {env: 1}}}":                                   "values.pilot.env: 1 must be a mapping",
		"{values: []}":                                                  "values: a list must be a mapping",
		"{meshConfig: 1}":                                               "meshConfig: 1 must be a mapping",
		"{meshConfig: {rootNamespace: 1}}": "meshConfig.rootNamespace: invalid value " +
			"for string field rootNamespace: 1",
		"{meshConfig: {acessLogFile: x}}":                             `meshConfig.acessLogFile: unknown field; did you mean "accessLogFile"?`,
		"{meshConfig: {outboundTrafficPolicy: {mode: REGISTRY}}}":     `meshConfig.outboundTrafficPolicy.mode: "REGISTRY" must be one of REGISTRY_ONLY, ALLOW_ANY`,
		"{meshConfig: {outboundTrafficPolicy: {mode: REGISTRYONLY}}}": `did you mean "REGISTRY_ONLY"?`,
		"{meshConfig: {outboundTrafficPolicy: {mood: x}}}":            `meshConfig.outboundTrafficPolicy.mood: unknown field; did you mean "mode"?`,
		"{meshConfig: {extensionProviders: [{name: a, zipkn: {}}]}}":  `meshConfig.extensionProviders[0].zipkn: unknown field; did you mean "zipkin"?`,
		"{meshConfig: {defaultConfig: {onDemand: 'yes'}}}":            `meshConfig.defaultConfig.onDemand: "yes" must be true or false`,
		"{meshConfig: {connectTimeout: soon}}": "meshConfig.connectTimeout: invalid " +
			"google.protobuf.Duration value",
		"{hubb: a, tagg: b}": `tagg: unknown field; did you mean "tag"?`,
	} {
		refused, _ := check(t, spec)
		if got := strings.Join(refused, "\n"); !strings.Contains(got, want) {
			t.Errorf("%s\n got %q\nwant %q", spec, got, want)
		}
	}
}

// TestAccepted holds what is not refused, and what it warns of.
func TestAccepted(t *testing.T) {
	for spec, want := range map[string]string{
		"{}": "",
		"{hub: localhost:5000/a/b-c_d, tag: 1.31-alpha, revision: 1-31-0}":           "",
		"{components: {pilot: {k8s: {resources: {limits: {cpu: 2}}}}}}":              "",
		"{components: {pilot: {k8s: {podDisruptionBudget: {maxUnavailable: 50%}}}}}": "",
		"{components: {ingressGateways: [{enabled: false}]}}":                        "",
		"{values: {gateways: {istio-ingressgateway: {runAsRoot: true}}}, components: {ingressGateways: [{name: a, k8s: {service: {ports: " +
			"[{port: 80}]}}}]}}": "",
		"{values: {pilot: {autoscaleMin: '2'}}}":          "",
		"{values: {ztunnel: {any: thing}}}":               "",
		"{meshConfig: {defaultConfig: {onDemand: true}}}": "",
		"{meshConfig: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, extensionProviders: [{name: a, zipkin: {service: b, port: 1}}], " +
			"defaultConfig: {proxyMetadata: {A: b}, drainDuration: 5s}}}": "",
		"{values: {pilot: {replicaCount: 2}}}": "values.pilot.replicaCount: it is deprecated; write " +
			"components.pilot.k8s.replicaCount",
		"{values: {gateways: {istio-ingressgateway: {resources: {}}}}}": "write " +
			"components.ingressGateways[name:istio-ingressgateway].k8s.resources",
		"{values: {global: {jwtPolicy: x}}}": "values.global.jwtPolicy: it is deprecated, and will be refused one day",
		"{values: {cni: {resource_quotas: {enabled: true}}}}": "values.cni.resource_quotas: charts do not read it under this name; " +
			"write resourceQuotas",
		"{values: {gateways: {istio-egressgateway: {labels: {a: b}}}}}": "values.gateways.istio-egressgateway.labels: it has no effect; write " +
			"label of the item of components.egressGateways",
		"{installPackagePath: /x}": "installPackagePath: it has no effect; name the install package with " +
			"--manifests",
	} {
		refused, warned := check(t, spec)
		got := strings.Join(warned, "\n")
		if len(refused) > 0 || !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s\nrefused %q\nwarned %q, want %q", spec, refused, got, want)
		}
	}
}

// TestProblemsAreBounded holds that a file of nonsense does not print for ever.
func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		b.WriteString("x" + strings.Repeat("i", i) + ": 1\n")
	}
	if refused, _ := check(t, b.String()); len(refused) != maxProblems {
		t.Errorf("%d problems, want %d", len(refused), maxProblems)
	}
}

// TestValuesSchema holds that every type of values.yaml is known.
func TestValuesSchema(t *testing.T) {
	plain := map[string]bool{"bool": true, "string": true, "number": true, "uint": true, "int": true, "duration": true, "any": true,
		"map": true, "texts": true, "IntOrString": true}
	for name, fields := range valuesSchema() {
		for field, typ := range fields {
			typ = strings.TrimSuffix(typ, " deprecated")
			typ = strings.TrimSuffix(strings.TrimPrefix(typ, "["), "]")
			if !plain[typ] && valuesSchema()[typ] == nil && !strings.HasPrefix(typ, "enum(") {
				t.Errorf("%s.%s has the unknown type %q", name, field, typ)
			}
		}
	}
}

// FuzzCheck holds that no spec panics.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"{hub: a}", "{components: {pilot: {k8s: {env: [null]}}, ingressGateways: [null, 1]}}",
		"{values: {gateways: {istio-ingressgateway: {ports: [{port: a}]}}}}", "{meshConfig: {defaultConfig: null}}"} {
		f.Add(s)
	}
	m := mapping(f)
	f.Fuzz(func(_ *testing.T, text string) {
		if spec, err := tree.ParseMap([]byte(text)); err == nil {
			Check(spec, m)
		}
	})
}
