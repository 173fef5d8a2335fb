package manifests_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/validate"
)

// nested makes a spec of one value.
func nested(t *testing.T, path string, value any) string {
	t.Helper()
	for _, k := range slices.Backward(strings.Split(path, ".")) {
		value = map[string]any{k: value}
	}
	out, err := yaml.Marshal(map[string]any{"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator", "spec": value})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func try(pkg *profile.Package, name, file string) (*install.Result, error) {
	return install.Generate(install.Inputs{
		Inputs: merge.Inputs{Profile: name, Files: []merge.File{{Name: "test.yaml", Text: []byte(file)}}}, Package: pkg,
	})
}

// TestEveryValueOfIstioHasARow holds that components.yaml says of each value that Istio has whether it does something,
// and names none that there is not.
func TestEveryValueOfIstioHasARow(t *testing.T) {
	pkg := open(t)
	used := map[string]bool{}
	for _, path := range validate.ValuesPaths() {
		s := pkg.Setting(path)
		if s == nil {
			t.Errorf("%s: components.yaml does not say what it does", path)
			continue
		}
		used[s.Path] = true
	}
	for _, s := range pkg.Settings {
		inside := slices.ContainsFunc(validate.ValuesPaths(), func(p string) bool { return strings.HasPrefix(s.Path, p+".") })
		deeper := slices.ContainsFunc(pkg.Settings, func(o profile.Setting) bool { return strings.HasPrefix(o.Path, s.Path+".") })
		if !used[s.Path] && !inside && !deeper {
			t.Errorf("%s: Istio has no such value", s.Path)
		}
	}
}

// TestExamplesOfSettingsDoSomething holds that a value that has a counterpart changes the objects.
func TestExamplesOfSettingsDoSomething(t *testing.T) {
	pkg := open(t)
	// The definitions, which are large, are rendered only where they matter.
	with := func(t *testing.T, file string, definitions bool) *install.Result {
		t.Helper()
		result, err := install.Generate(install.Inputs{Package: pkg, Inputs: merge.Inputs{
			Files: []merge.File{{Name: "test.yaml", Text: []byte(file)}},
			Set:   []string{"values.base.enableIstioConfigCRDs=" + strconv.FormatBool(definitions)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	before := with(t, "", false)
	for _, s := range pkg.Settings {
		if s.Does == "" || s.Example == nil {
			continue
		}
		t.Run(s.Path, func(t *testing.T) {
			before, after := before, (*install.Result)(nil)
			switch s.Path {
			case "values.base.enableIstioConfigCRDs":
				before, after = with(t, "", true), before
			case "values.base.excludedCRDs":
				before, after = with(t, "", true), with(t, nested(t, s.Path, s.Example), true)
			default:
				after = with(t, nested(t, s.Path, s.Example), false)
			}
			for _, w := range after.Warnings {
				if strings.Contains(w, "no effect") {
					t.Error(w)
				}
			}
			if text(t, before.Objects) == text(t, after.Objects) {
				t.Errorf("%v changes nothing", s.Example)
			}
		})
	}
}

// TestWhatHasNoCounterpartIsAWarning holds that nothing is ignored in silence, and says what to write instead.
func TestWhatHasNoCounterpartIsAWarning(t *testing.T) {
	pkg := open(t)
	for spec, want := range map[string]string{
		"values: {pilot: {traceSampling: 1}}": "values.pilot.traceSampling: it has no effect " +
			"in this install package: proxies make no traces yet",
		"values: {pilot: {env: {PILOT_X: a}}}":                  "values.pilot.env.PILOT_X: it has no effect",
		"values: {global: {logAsJson: true}}":                   "values.global.logAsJson: it has no effect",
		"values: {sidecarInjectorWebhook: {templates: {a: b}}}": "",
		"components: {injector: {enabled: true}}":               "",
		"values: {revisionTags: [a]}": "values.revisionTags: it has no effect in this " +
			"install package: use `fairlead tag set`",
		"components: {cni: {enabled: true}}": "",
		"values: {cni: {ambient: {enabled: true}}}": "values.cni.ambient.enabled: it has no effect " +
			"in this install package: this version has no ambient mode",
		"components: {ztunnel: {}}": "",
		"components: {pilot: {k8s: {env: [{name: A, value: b}, {name: PILOT_X, value: a}]}}}": "components.pilot.k8s.env[1]: PILOT_X has no " +
			"effect in this install package: the services have flags",
		"components: {pilot: {k8s: {env: [{name: GODEBUG, value: b}]}}}": "",
		"values: {pilot: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, labelSelector: " +
			"{matchLabels: {app: istiod}}}]}}}}": "matchLabels.app: no Pod of this install package has the label app: istiod: the Pods have app: " +
			"xds-server",
		"components: {pilot: {k8s: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, labelSelector: " +
			"{matchExpressions: [{key: app, operator: In, values: [istiod]}]}}]}}}": "matchExpressions[0]: no Pod of this install package has the " +
			"label app: istiod",
	} {
		result, err := try(pkg, "minimal", "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {"+spec+"}\n")
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		if got := strings.Join(result.Warnings, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s\nwarned %q\nwant   %q", spec, got, want)
		}
	}
}

// TestOwnValuesAreChecked holds the schema of the package beside Istio's.
func TestOwnValuesAreChecked(t *testing.T) {
	pkg := open(t)
	for spec, want := range map[string]string{
		"values: {xdsServr: {}}":                    `values.xdsServr: unknown field; did you mean "xdsServer"?`,
		"values: {xdsServer: {replicaCout: 1}}":     `values.xdsServer.replicaCout: unknown field; did you mean "replicaCount"?`,
		"values: {xdsServer: {replicaCount: many}}": `values.xdsServer.replicaCount: "many" must be integer`,
		"values: {base: {createNamespce: true}}":    `values.base.createNamespce: unknown field; did you mean "createNamespace"?`,
		"values: {global: {namespaces: {cb: a}}}":   `values.global.namespaces.cb: unknown field; did you mean "ca"?`,
		"values: {compact: {ca: {storage: 3}}}":     "values.compact.ca.storage: 3 must be boolean",
		"values: {ca: {revisions: [1]}}":            "values.ca.revisions[0]: 1 must be string",
		"components: {xdsServr: {}}":                `components.xdsServr: unknown field; did you mean "xdsServer"?`,
		"components: {pilot: {enabled: false}, xdsServer: {enabled: true}}": "components.xdsServer.enabled: it is part of components.pilot, " +
			"which is disabled; enable that, or disable this",
	} {
		if _, err := try(pkg, "minimal", "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {"+spec+"}\n"); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v\nwant  %q", spec, err, want)
		}
	}
}

// TestChartsRefuseUnknownValues holds what `helm install` says of a value that a chart does not have.
func TestChartsRefuseUnknownValues(t *testing.T) {
	pkg := open(t)
	for _, c := range pkg.Components {
		if c.Chart == "" {
			continue
		}
		chart, err := pkg.Chart(c.Chart)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render.Chart(c.Name, chart, tree.Map{"replicaCout": 1.0}, "istio-system"); err == nil ||
			!strings.Contains(err.Error(), "replicaCout") {
			t.Errorf("%s: error %v", c.Chart, err)
		}
		objects, err := render.Chart(c.Name, chart, tree.Map{"global": tree.Map{"remotePilotAddress": "10.1.2.3"}}, "other")
		if err != nil {
			t.Errorf("%s cannot be installed alone: %v", c.Chart, err)
		}
		if _, err := decode(text(t, withoutCRDs(objects))); err != nil {
			t.Errorf("%s: %v", c.Chart, err)
		}
	}
}

// TestPilotSpeaksOfTheControlPlane holds which services a setting of components.pilot reaches, and that a service's own
// wins.
func TestPilotSpeaksOfTheControlPlane(t *testing.T) {
	pkg := open(t)
	result, err := try(pkg, "minimal", `
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  components:
    pilot:
      hub: example.com/pilot
      k8s:
        podAnnotations: {who: pilot, all: "yes"}
        replicaCount: 7
        resources: {requests: {cpu: 777m}}
        hpaSpec: {maxReplicas: 77}
        overlays:
        - {kind: Deployment, name: istiod, patches: [{path: spec.template.spec.hostNetwork, value: false}]}
    configWatcher: {hub: example.com/own, k8s: {podAnnotations: {who: own}}}
  values:
    pilot: {nodeSelector: {a: b}}
`)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(result.Warnings, "\n"); strings.Contains(got, "no effect") {
		t.Errorf("warnings %s", got)
	}
	for name, want := range map[string]struct {
		has, not []string
	}{
		"ca": {[]string{"image: example.com/pilot/ca:dev", "who: pilot", "a: b", "replicas: 1"}, []string{"777m", "hostNetwork"}},
		"config-watcher": {[]string{"image: example.com/own/config-watcher:dev", "who: own", `all: "yes"`, "a: b", "replicas: 2"},
			[]string{"777m", "hostNetwork"}},
		"xds-server": {[]string{"image: example.com/pilot/xds-server:dev", "who: pilot", "a: b", "replicas: 7", "cpu: 777m",
			"hostNetwork: false"}, nil},
	} {
		for _, o := range result.Objects {
			if o.Kind() != "Deployment" || o.Name() != name {
				continue
			}
			got := text(t, withoutCRDs(result.Objects[slices.Index(result.Objects, o):][:1]))
			for _, s := range want.has {
				if !strings.Contains(got, s) {
					t.Errorf("Deployment %s is without %q", name, s)
				}
			}
			for _, s := range want.not {
				if strings.Contains(got, s) {
					t.Errorf("Deployment %s has %q, which speaks of xds-server alone", name, s)
				}
			}
		}
	}
}

const page = "../../../docs/reference/install-settings.md"

// TestSettingsPage holds the reference page, which says what components.yaml says. `make generate` writes it.
func TestSettingsPage(t *testing.T) {
	pkg := open(t)
	var b strings.Builder
	b.WriteString(`# What an IstioOperator installs

Generated from ` + "`services/installer/manifests/components.yaml` by `make generate`" + `. An IstioOperator that was written for
Istio installs Fairlead: ` + "`components.pilot` and `values.pilot`" + ` speak of the control plane, and each service has a
component of its own that refines it. A setting without a counterpart is a warning that names it.

## Components

| component of the spec | is | Deployment | takes over from components.pilot |
|---|---|---|---|
`)
	for _, c := range pkg.Components {
		about, takes := c.About, ""
		switch {
		case c.Alias != "":
			about = "part of components." + c.Alias + ", with a warning"
		case c.Absent != "":
			about += "; a warning: " + c.Absent
		case c.Under != "" && len(c.UnderWithout) > 0:
			takes = "all but " + code(c.UnderWithout...) + "; of values.pilot " + code(c.UnderValues...)
		case c.Under != "":
			takes = "all; of values.pilot " + code(c.UnderValues...)
		}
		name := strings.NewReplacer("${revision}", "[-REVISION]", "${name}", "NAME").Replace(c.Workload.Name)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.Name, about, code(name), takes)
	}
	b.WriteString("\n## Fields that are values, too\n\n| field of the spec | value |\n|---|---|\n")
	for _, v := range pkg.Values {
		fmt.Fprintf(&b, "| `%s` | `values.%s` |\n", v.Spec, v.Value)
	}
	b.WriteString("\n## Values of Istio's\n\nA row is of the value and of all that is below it, unless a longer one says otherwise.\n\n| " +
		"value | does | in its place |\n|---|---|---|\n")
	for _, s := range pkg.Settings {
		does := s.Does
		if does == "" {
			does = "nothing: a warning"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Path, does, s.Instead)
	}
	b.WriteString("\n## Values of Fairlead's own\n\n| value | is | type |\n|---|---|---|\n")
	own(&b, "values", pkg.Schema)
	testkit.Golden(t, page, []byte(b.String()))
}

func code(names ...string) string {
	if len(names) == 0 || names[0] == "" {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}

func own(b *strings.Builder, path string, s *profile.Schema) {
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field, at := s.Properties[name], path+"."+name
		if len(field.Properties) > 0 && field.Description == "" {
			if at != "values.compact.ca" && at != "values.compact.configWatcher" && at != "values.compact.xdsServer" {
				own(b, at, field)
			} else {
				fmt.Fprintf(b, "| `%s` | as `values.%s` | mapping |\n", at, name)
			}
			continue
		}
		kind, err := json.Marshal(field.Type)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, field.Description, strings.Trim(strings.ReplaceAll(string(kind), `"`, ""), "[]"))
	}
}
