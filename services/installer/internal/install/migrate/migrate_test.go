package migrate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/compare"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/values"
)

// small is an install package without charts, with the components and profiles of Istio's.
func small(t testing.TB) *profile.Package {
	t.Helper()
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	pkg, err := profile.Open(fstest.MapFS{
		"charts/x": {},
		"profiles/default.yaml": text(
			"spec: {hub: h, tag: t, components: {base: {enabled: true}, pilot: {enabled: true}, ingressGateways: [{name: istio-ingressgateway, " +
				"enabled: true}]}, " +
				"values: {defaultRevision: '', global: {istioNamespace: istio-system}}}"),
		"profiles/empty.yaml": text("spec: {components: {base: {enabled: false}, pilot: {enabled: false}, ingressGateways: [{name: " +
			"istio-ingressgateway, enabled: false}]}}"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

func parse(t testing.TB, text string) tree.Map {
	t.Helper()
	m, err := tree.ParseMap([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestValuesOfCharts(t *testing.T) {
	const both = "profile: empty, components: {pilot: {enabled: true}}"
	for _, tc := range []struct{ name, chart, values, spec, warning string }{
		{"what fields say becomes fields", "istiod", "{global: {hub: x, tag: 1.2.3}, revision: r, meshConfig: {accessLogFile: a}}",
			"{profile: empty, hub: x, tag: 1.2.3, revision: r, meshConfig: {accessLogFile: a}, components: {pilot: {enabled: true}}}", ""},
		{"values of the chart alone go below its name", "istiod", "{traceSampling: 5, env: {A: b}}",
			"{" + both + ", values: {pilot: {traceSampling: 5, env: {A: b}}}}", ""},
		{"what is below the chart's name wins", "istiod", "{traceSampling: 5, pilot: {traceSampling: 7}}",
			"{" + both + ", values: {pilot: {traceSampling: 7}}}", ""},
		{"hub and tag of the component", "istiod", "{hub: x, pilot: {tag: w}}",
			"{profile: empty, components: {pilot: {enabled: true, hub: x, tag: w}}}", ""},
		{"replicas of a chart that scales stay a value", "istiod", "{replicaCount: 3}", "{" + both + ", values: {pilot: {replicaCount: 3}}}", ""},
		{"replicas of a chart that does not scale become a setting", "istiod", "{replicaCount: 3, autoscaleEnabled: false}",
			"{profile: empty, components: {pilot: {enabled: true, k8s: {replicaCount: 3}}}, values: {pilot: {autoscaleEnabled: false}}}", ""},
		{"the platform is global", "istiod", "{platform: gke}", "{" + both + ", values: {global: {platform: gke}}}", ""},
		{"what the profile says is not repeated", "istiod", "{global: {istioNamespace: istio-system}, env: {}}", "{" + both + "}", ""},
		{"enablement of another chart", "istiod", "{pilot: {cni: {enabled: true}}}",
			"{profile: empty, components: {pilot: {enabled: true}, cni: {enabled: true}}}", ""},
		{"a value that no chart knows is kept", "istiod", "{global: {nope: 1}}", "{" + both + ", unvalidatedValues: {global: {nope: 1}}}",
			"values.global.nope: unknown field"},
		{"an item of a list that no schema allows is kept with its list", "istiod", "{extraContainerArgs: [--x]}",
			"{" + both + ", unvalidatedValues: {pilot: {extraContainerArgs: [--x]}}}", "extraContainerArgs"},
		{"internal defaults", "istiod", "{_internal_defaults_do_not_set: {a: 1}}", "{" + both + "}",
			"_internal_defaults_do_not_set is not migrated"},
		{"cni", "cni", "{cniBinDir: /bin, global: {hub: x}}",
			"{profile: empty, hub: x, components: {cni: {enabled: true}}, values: {cni: {cniBinDir: /bin}}}", ""},
		{"base has Helm's default of the validator", "base", "{}",
			"{profile: empty, components: {base: {enabled: true}}, values: {defaultRevision: default}}", ""},
		{"a gateway", "gateway", "{name: istio-edge, service: {type: ClusterIP, ports: [{name: a, port: 80, targetPort: 8080}]}, autoscaling: " +
			"{minReplicas: 2}, env: {A: 1}, labels: {x: z}}",
			"{profile: empty, components: {ingressGateways: [{name: istio-edge, enabled: true, label: {app: istio-edge, istio: edge}, k8s: {env: " +
				"[{name: A, value: '1'}], hpaSpec: {minReplicas: 2}, " +
				"podLabels: {x: z}, service: {type: ClusterIP, ports: [{name: a, port: 80, targetPort: 8080}]}}}]}}", ""},
		{"a gateway without a name", "gateway", "{}",
			"{profile: empty, components: {ingressGateways: [{name: istio-ingressgateway, enabled: true, label: {app: istio-ingressgateway, " +
				"istio: ingressgateway}}]}}", "name is not in the values"},
		{"what a gateway cannot have", "gateway", "{name: g, networkGateway: n, kind: DaemonSet, rbac: {enabled: false}}",
			"{profile: empty, components: {ingressGateways: [{name: g, enabled: true, label: {app: g, istio: g}}]}}",
			"f: rbac.enabled of the gateway chart is not migrated"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Helm([]Values{{File: "f", Chart: Chart(tc.chart), Tree: parse(t, tc.values)}}, small(t))
			if err != nil {
				t.Fatal(err)
			}
			if want := parse(t, tc.spec); !reflect.DeepEqual(r.Spec, want) {
				t.Errorf("spec %v\nwant %v", r.Spec, want)
			}
			if all := strings.Join(r.Warnings, "\n"); tc.warning == "" && all != "" || !strings.Contains(all, tc.warning) {
				t.Errorf("warnings %q, want %q", all, tc.warning)
			}
		})
	}
}

func TestChartsThatDisagreeAreNamed(t *testing.T) {
	r, err := Helm([]Values{
		{"istiod.yaml", Istiod, parse(t, "{global: {hub: a, tag: t}}")}, {"cni.yaml", CNI, parse(t, "{global: {hub: b, tag: t}}")},
	}, small(t))
	if err != nil || r.Spec["hub"] != "a" || len(r.Warnings) != 1 ||
		!strings.Contains(r.Warnings[0], "cni.yaml: global.hub is b, and a in a file before it") {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestAGatewayThatDisagreesIsNamed(t *testing.T) {
	r, err := Helm([]Values{
		{"istiod.yaml", Istiod, parse(t, "{global: {hub: a}}")}, {"edge.yaml", Gateway, parse(t, "{name: edge, global: {hub: b, network: net}}")},
	}, small(t))
	if err != nil || r.Spec["hub"] != "a" || tree.GetString(r.Spec, "values", "global", "network") != "net" || len(r.Warnings) != 1 ||
		!strings.Contains(r.Warnings[0], "global.hub is b, and a in a file before it") {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestChartsAreFound(t *testing.T) {
	for text, want := range map[string]Chart{
		"{pilot: {}}": Istiod, "{meshConfig: {a: b}}": Istiod, "{cni: {a: b}}": CNI, "{cniBinDir: x}": CNI, "{service: {type: x}}": Gateway,
		"{base: {a: b}}":     Base,
		"{global: {hub: x}}": Istiod, "{foo: 1}": "", "{}": "",
	} {
		if got, err := Detect(parse(t, text)); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if _, err := ParseChart("istoid"); err == nil || !strings.Contains(err.Error(), `did you mean "istiod"`) {
		t.Errorf("a chart that is none: %v", err)
	}
}

func TestOperators(t *testing.T) {
	for _, tc := range []struct{ name, file, spec, warning string }{
		{"values that fields say", "{spec: {values: {global: {hub: x}, pilot: {traceSampling: 3, hub: w}}}}",
			"{hub: x, components: {pilot: {hub: w}}, values: {pilot: {traceSampling: 3}}}", ""},
		{"a component is not enabled by a value", "{spec: {values: {cni: {hub: w}}}}", "{values: {cni: {hub: w}}}", ""},
		{"a field that wins over a value",
			"{spec: {meshConfig: {accessLogFile: a}, values: {meshConfig: {accessLogFile: b, accessLogFormat: c}}}}",
			"{meshConfig: {accessLogFile: a, accessLogFormat: c}}", ""},
		{"values of all gateways stay", "{spec: {values: {gateways: {istio-ingressgateway: {autoscaleMin: 2}}}}}",
			"{values: {gateways: {istio-ingressgateway: {autoscaleMin: 2}}}}", ""},
		{"older forms", "{spec: {namespace: m, values: {pilot: {enabled: false}}}}",
			"{components: {pilot: {enabled: false}}, values: {global: {istioNamespace: m}}}", "older form"},
		{"an unknown field", "{spec: {hubb: x, hub: w}}", "{hub: w}", `hubb: unknown field; did you mean "hub"?; it is not migrated`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n" + strings.TrimSuffix(strings.TrimPrefix(tc.file, "{"), "}")
			r, err := Operator(merge.Inputs{Files: []merge.File{{Name: "f", Text: []byte(text)}}}, small(t))
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(r.Warnings, "\n"); tc.warning == "" && all != "" || !strings.Contains(all, tc.warning) {
				t.Errorf("warnings %q, want %q", all, tc.warning)
			}
			if want := parse(t, tc.spec); !reflect.DeepEqual(r.Spec, want) {
				t.Errorf("spec %v\nwant %v", r.Spec, want)
			}
		})
	}
}

// TestRoundTrip draws specs, and makes a spec again of the values that their charts get.
func TestRoundTrip(t *testing.T) {
	pkg := small(t)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test's draw
		spec := tree.Map{"profile": "empty"}
		for _, path := range []string{
			"hub", "tag", "revision", "meshConfig.accessLogFile", "components.pilot.hub", "components.pilot.tag", "values.pilot.traceSampling",
			"values.pilot.env.A", "values.global.proxy.logLevel", "values.sidecarInjectorWebhook.rewriteAppHTTPProbe", "values.cni.cniBinDir",
		} {
			if r.IntN(2) == 0 {
				tree.Put(spec, fmt.Sprintf("v%d", r.IntN(9)), strings.Split(path, ".")...)
			}
		}
		tree.Put(spec, true, "components", "pilot", "enabled")
		first := &Result{Spec: spec}
		base, err := first.base(pkg)
		if err != nil {
			t.Fatal(err)
		}
		want := instances(tree.Merge(base, spec), &pkg.Mapping)
		chart := values.Instances(tree.Merge(base, spec), &pkg.Mapping)[0].Values
		second, err := Helm([]Values{{File: "f", Chart: Istiod, Tree: chart}}, pkg)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := instances(tree.Merge(base, second.Spec), &pkg.Mapping)
		if !reflect.DeepEqual(got, want) && !onlyUnvalidated(second) {
			t.Errorf("seed %d: %v\nbecomes %v\nvalues %v\nwant   %v", seed, spec, second.Spec, got, want)
		}
	}
}

// onlyUnvalidated tells that types of drawn values were refused, and the values kept.
func onlyUnvalidated(r *Result) bool { return r.Spec["unvalidatedValues"] != nil }

// TestChartsRenderTheSame renders Istio's charts with values, as Helm does, and the migrated IstioOperator.
// ISTIO_MANIFESTS names manifests/ of an Istio release; `make oracle` sets it.
func TestChartsRenderTheSame(t *testing.T) {
	dir := os.Getenv("ISTIO_MANIFESTS")
	if dir == "" {
		t.Skip("ISTIO_MANIFESTS names no manifests directory of Istio: run `make oracle`")
	}
	pkg, err := profile.Open(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	charts := map[Chart]string{Istiod: "charts/istio-control/istio-discovery", Base: "charts/base", CNI: "charts/istio-cni"}
	for _, tc := range []struct {
		name   string
		values map[Chart]string
	}{
		{"without values", map[Chart]string{Istiod: "{}", Base: "{}"}},
		{
			"istiod alone", map[Chart]string{Istiod: "{global: {hub: x, tag: w}, env: {A: b}, traceSampling: 50, podAnnotations: {a: b}, " +
				"resources: {requests: {cpu: 1}}}"}},
		{"a revision", map[Chart]string{Istiod: "{revision: canary, revisionTags: [prod], global: {proxy: {logLevel: debug}}}",
			Base: "{defaultRevision: canary}"}},
		{"a fixed number of replicas", map[Chart]string{Istiod: "{autoscaleEnabled: false, replicaCount: 3, nodeSelector: {a: b}}"}},
		{"an autoscaler", map[Chart]string{Istiod: "{autoscaleMin: 2, autoscaleMax: 7, replicaCount: 4, pilot: {autoscaleMax: 9}}"}},
		{
			"a mesh configuration", map[Chart]string{Istiod: "{meshConfig: {accessLogFile: /dev/stdout, defaultConfig: {proxyMetadata: {A: b}}}, " +
				"telemetry: {enabled: false}}"}},
		{"a profile of Helm", map[Chart]string{Istiod: "{profile: demo}", Base: "{profile: demo}"}},
		{"a platform", map[Chart]string{Istiod: "{platform: gke}", CNI: "{platform: gke}"}},
		{"base without its definitions", map[Chart]string{Base: "{base: {enableCRDTemplates: false}}"}},
		{"cni", map[Chart]string{Istiod: "{pilot: {cni: {enabled: true}}}",
			CNI: "{cniBinDir: /x, excludeNamespaces: [a], ambient: {enabled: true}, cni: {logging: {level: debug}}}"}},
		{
			"injection", map[Chart]string{Istiod: "{sidecarInjectorWebhook: {enableNamespacesByDefault: true}, global: {proxy: {autoInject: " +
				"disabled}}}"}},
		{"a value that the schema lacks", map[Chart]string{Istiod: "{extraContainerArgs: [--x], pdb: {minAvailable: 2}, global: {nope: 1}}"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var originals []*manifest.Object
			var files []Values
			for _, chart := range []Chart{Base, Istiod, CNI} {
				text, ok := tc.values[chart]
				if !ok {
					continue
				}
				c, err := pkg.Chart(charts[chart])
				if err != nil {
					t.Fatal(err)
				}
				objects, err := render.Chart(string(chart), c, parse(t, text), "istio-system")
				if err != nil {
					t.Fatal(err)
				}
				originals = append(originals, objects...)
				files = append(files, Values{File: string(chart), Chart: chart, Tree: parse(t, text)})
			}
			r, err := Helm(files, pkg)
			if err != nil {
				t.Fatal(err)
			}
			text, err := r.Text()
			if err != nil {
				t.Fatal(err)
			}
			generated, err := install.Generate(install.Inputs{Inputs: merge.Inputs{Files: []merge.File{{Name: "migrated", Text: text}}},
				Package: pkg})
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			var o compare.Options
			// The ConfigMap values, and the values in that of the injector, are the inputs in writing.
			if err := o.Ignore("ConfigMap:*:values*,ConfigMap:*:istio-sidecar-injector*"); err != nil {
				t.Fatal(err)
			}
			differences, err := compare.Manifests(originals, generated.Objects, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range differences {
				t.Errorf("%s %s %v", d.Object, d.Only, d.Changes)
			}
			if t.Failed() {
				t.Logf("%s%v", text, r.Warnings)
			}
		})
	}
}
