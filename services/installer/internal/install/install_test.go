package install

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/profile"
)

// ours is an install package with components.yaml, so that nothing of it is in code.
var ours = fstest.MapFS{
	"components.yaml": {Data: []byte(`
namespace: mesh-system
values: [{spec: hub, value: image.hub}]
components:
- name: server
  chart: charts/server
  root: server
  values: [{spec: k8s.replicaCount, value: replicas}]
  workload: {kind: Deployment, name: "server${revision}", container: main, service: server}
`)},
	"profiles/default.yaml":     {Data: []byte("spec: {hub: example.com/a, components: {server: {enabled: true}}}\n")},
	"profiles/two.yaml":         {Data: []byte("spec: {components: {server: {k8s: {replicaCount: 2}}}}\n")},
	"charts/server/Chart.yaml":  {Data: []byte("{apiVersion: v2, name: server, version: 1.0.0}\n")},
	"charts/server/values.yaml": {Data: []byte("server: {replicas: 1}\nrevision: ''\n")},
	"charts/server/templates/all.yaml": {Data: []byte(`# a comment
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: {{ .Release.Namespace }}}
spec: {ports: [{port: 1, name: a}, {port: 2, name: b}]}
---
{{ if .Values.fail }}{{ fail "told to" }}{{ end }}
apiVersion: apps/v1
kind: Deployment
metadata: {name: server{{ with .Values.revision }}-{{ . }}{{ end }}, namespace: {{ .Release.Namespace }}}
spec:
  replicas: {{ .Values.server.replicas }}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers: [{name: main, image: {{ .Values.image.hub }}/server, env: [{name: A, value: x}]}, {name: side}]
---
{{ if .Values.broken }}a: [{{ end }}
{{ if .Values.nameless }}{kind: Service}{{ end }}
`)},
}

func generate(t testing.TB, in Inputs) (string, *Result, error) {
	t.Helper()
	pkg, err := profile.Open(ours)
	if err != nil {
		t.Fatal(err)
	}
	in.Package = pkg
	result, err := Generate(in)
	if err != nil {
		return "", nil, err
	}
	text, err := order.Text(result.Objects)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), result, nil
}

func set(settings ...string) Inputs { return Inputs{Inputs: merge.Inputs{Set: settings}} }

const wanted = `apiVersion: v1
kind: Service
metadata:
  name: server
  namespace: mesh-system
spec:
  ports:
  - name: a
    port: 1
  - name: b
    port: 2
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: server
  namespace: mesh-system
spec:
  replicas: 2
  template:
    metadata:
      labels:
        a: b
    spec:
      containers:
      - env:
        - name: A
          value: x
        image: example.com/a/server
        name: main
      - name: side
`

// TestAPackageIsData renders a package that is not Istio's, a hundred times to the same bytes.
func TestAPackageIsData(t *testing.T) {
	for range 100 {
		text, result, err := generate(t, set("profile=two"))
		if err != nil || text != wanted || len(result.Warnings) > 0 {
			t.Fatalf("error %v, warnings %q, objects\n%s", err, result.Warnings, text)
		}
	}
}

// TestSettings holds what each Kubernetes setting changes in the objects.
func TestSettings(t *testing.T) {
	const k8s = "components.server.k8s."
	for _, tc := range []struct{ setting, want string }{
		{"replicaCount=3", "  replicas: 3\n"},
		{"env[0].name=B", "      - env:\n        - name: B\n        - name: A\n"},
		{"env[0].name=A", "        - name: A\n          value: x\n"},
		{"imagePullPolicy=Never", "        imagePullPolicy: Never\n"},
		{"imagePullSecrets[0].name=s", "      imagePullSecrets:\n      - name: s\n"},
		{"resources.requests.cpu=10m", "        resources:\n          requests:\n            cpu: 10m\n"},
		{"readinessProbe.periodSeconds=3", "        readinessProbe:\n          periodSeconds: 3\n"},
		{"podAnnotations.x=z", "      annotations:\n        x: z\n"},
		{"podLabels.x=z", "      labels:\n        a: b\n        x: z\n"},
		{"priorityClassName=p", "      priorityClassName: p\n"},
		{"nodeSelector.x=z", "      nodeSelector:\n        x: z\n"},
		{"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1", "          - weight: 1\n"},
		{"tolerations[0].key=k", "      tolerations:\n      - key: k\n"},
		{"topologySpreadConstraints[0].topologyKey=zone", "      - topologyKey: zone\n"},
		{"serviceAnnotations.x=z", "  annotations:\n    x: z\n  name: server\n"},
		{"service.type=NodePort", "  type: NodePort\n"},
		{"service.ports[0].port=3", "  ports:\n  - port: 3\n  - name: a\n    port: 1\n"},
		{"securityContext.runAsUser=5", "      securityContext:\n        runAsUser: 5\n"},
		{"podSecurityContext.runAsUser=5", "      securityContext:\n        runAsUser: 5\n"},
		{"strategy.type=Recreate", "  strategy:\n    type: Recreate\n"},
		{"volumes[0].name=v", "      volumes:\n      - name: v\n"},
		{"volumeMounts[0].mountPath=/v", "        volumeMounts:\n        - mountPath: /v\n"},
	} {
		t.Run(tc.setting, func(t *testing.T) {
			text, result, err := generate(t, set(k8s+tc.setting))
			if err != nil || len(result.Warnings) > 0 || !strings.Contains(text, tc.want) {
				t.Errorf("error %v, objects without %q:\n%s", err, tc.want, text)
			}
		})
	}
	null := func(setting string) Inputs {
		text := "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {components: {server: {k8s: {" + setting + ": null}}}}\n"
		return Inputs{Inputs: merge.Inputs{Files: []merge.File{{Name: "mesh.yaml", Text: []byte(text)}}}}
	}
	text, _, err := generate(t, null("env"))
	if err != nil || strings.Contains(text, "- name: A") {
		t.Errorf("null leaves what the chart says: error %v, objects\n%s", err, text)
	}
	for setting, want := range map[string]string{
		"hpaSpec.maxReplicas=3": "component server: k8s.hpaSpec has no effect: the component has no HorizontalPodAutoscaler server",
		"podDisruptionBudget.minAvailable=1": "component server: k8s.podDisruptionBudget has no effect: the component has no " +
			"PodDisruptionBudget server",
	} {
		_, result, err := generate(t, set(k8s+setting))
		if err != nil || len(result.Warnings) != 1 || result.Warnings[0] != want {
			t.Errorf("%s: error %v, want the warning %q", setting, err, want)
		}
	}
	_, result, err := generate(t, null("service"))
	if want := "component server: k8s.service has no effect: a Service without a spec cannot be; use k8s.overlays to remove a field of " +
		"it"; err != nil || !slices.Equal(result.Warnings, []string{want}) {
		t.Errorf("error %v, want the warning %q", err, want)
	}
}

// TestRevisionIsPartOfNames holds that settings find the workload of a revision.
func TestRevisionIsPartOfNames(t *testing.T) {
	text, result, err := generate(t, set("values.revision=canary", "components.server.k8s.nodeSelector.x=z"))
	if err != nil || len(result.Warnings) > 0 || !strings.Contains(text, "name: server-canary\n") ||
		!strings.Contains(text, "nodeSelector:\n        x: z\n") {
		t.Errorf("error %v, objects\n%s", err, text)
	}
}

// TestErrorsNameTheirPlace holds that an error says which input, component and template it is of.
func TestErrorsNameTheirPlace(t *testing.T) {
	for setting, want := range map[string]string{
		"hubb=x":                        `--set hubb=x: hubb: unknown field; did you mean "hub"?`,
		"components.servr.enabled=true": `--set components.servr.enabled=true: components.servr: unknown field; did you mean "server"?`,
		"unvalidatedValues.fail=true":   "component server: ",
		"unvalidatedValues.broken=true": "component server: document 3 of template server/templates/all.yaml is no " +
			"object: ",
		"unvalidatedValues.nameless=true": "component server: document 3 of template server/templates/all.yaml is an " +
			"object without kind, apiVersion or name",
		"components.server.k8s.overlays[0].patches[0].path=a[": "a bracket is open",
	} {
		in := set(setting)
		if strings.Contains(setting, "overlays") {
			in.Set = append(in.Set, "components.server.k8s.overlays[0].kind=Service", "components.server.k8s.overlays[0].name=server")
		}
		if _, _, err := generate(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", setting, err, want)
		}
	}
	file := merge.File{Name: "mesh.yaml",
		Text: []byte("apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec:\n  hub: a\n  components:\n    server:\n      k8s:\n    " +
			"    env:\n        - nam: x\n")}
	want := `mesh.yaml:9: components.server.k8s.env[0].nam: unknown field; did you mean "name"?`
	if _, _, err := generate(t, Inputs{Inputs: merge.Inputs{Files: []merge.File{file}}}); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestForceTurnsRefusalsIntoWarnings holds that --force renders, and says what it went over.
func TestForceTurnsRefusalsIntoWarnings(t *testing.T) {
	in := set("profile=two", "hubb=x")
	in.Force = true
	text, result, err := generate(t, in)
	if err != nil || text != wanted || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "hubb: unknown field") {
		t.Errorf("error %v, result %+v", err, result)
	}
}

// TestBrokenPackages holds what is said of a directory that is no install package.
func TestBrokenPackages(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(fstest.MapFS)
		want   string
	}{
		"no profiles": {func(m fstest.MapFS) { delete(m, "profiles/default.yaml"); delete(m, "profiles/two.yaml") },
			"has no directory profiles/"},
		"a bad mapping": {func(m fstest.MapFS) { m["components.yaml"] = &fstest.MapFile{Data: []byte("componets: []")} },
			"components.yaml of the install package: "},
		"no components": {func(m fstest.MapFS) { m["components.yaml"] = &fstest.MapFile{Data: []byte("namespace: a")} }, "it names no component"},
		"a chart outside": {func(m fstest.MapFS) {
			m["components.yaml"] = &fstest.MapFile{Data: []byte("components: [{name: a, chart: ../a}]")}
		}, "outside of the package"},
		"no such chart": {func(m fstest.MapFS) { delete(m, "charts/server/Chart.yaml") }, "chart charts/server of the install package: "},
		"no default": {func(m fstest.MapFS) { delete(m, "profiles/default.yaml") },
			`profile "default" is not in the install package, which has two`},
		"a bare profile": {func(m fstest.MapFS) { m["profiles/default.yaml"] = &fstest.MapFile{Data: []byte("hub: a")} }, "has no spec"},
		"a broken profile": {func(m fstest.MapFS) { m["profiles/default.yaml"] = &fstest.MapFile{Data: []byte("a: [")} },
			"profile default of the install package: yaml: "},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{}
			for k, v := range ours {
				files[k] = v
			}
			tc.change(files)
			pkg, err := profile.Open(files)
			if err == nil {
				_, err = Generate(Inputs{Package: pkg})
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
