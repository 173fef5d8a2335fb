package merge

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// emptyPackage has profiles that say nothing, and Istio's components.
func emptyPackage(t testing.TB, profiles map[string]string) *profile.Package {
	t.Helper()
	files := fstest.MapFS{"charts/x": {}, "profiles/default.yaml": {Data: []byte("spec: {}\n")}}
	for name, text := range profiles {
		files["profiles/"+name+".yaml"] = &fstest.MapFile{Data: []byte(text)}
	}
	pkg, err := profile.Open(files)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

func inSpec(layer string) string {
	return "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: " + layer + "\n"
}

// TestMerges runs testdata/merge.txt.
func TestMerges(t *testing.T) {
	text, err := os.ReadFile("testdata/merge.txt")
	if err != nil {
		t.Fatal(err)
	}
	pkg := emptyPackage(t, nil)
	count := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		inputs, want, ok := strings.Cut(line, " => ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		count++
		t.Run(line, func(t *testing.T) {
			before := strings.Split(" "+inputs, " ; ")
			in := Inputs{Set: before[1:]}
			for _, layer := range strings.Split(before[0], " + ") {
				if layer = strings.TrimSpace(layer); layer != "" {
					in.Files = append(in.Files, File{Name: "layer", Text: []byte(inSpec(layer))})
				}
			}
			merged, err := Merge(in, pkg)
			if part, isError := strings.CutPrefix(want, "error "); isError {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v, want one with %q", err, part)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wanted, err := tree.ParseMap([]byte(want))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(merged.User, wanted) {
				t.Errorf("got %v, want %v", merged.User, wanted)
			}
		})
	}
	if count < 200 {
		t.Errorf("%d cases are too few", count)
	}
}

// TestProfilesLieUnderFiles holds the order: default, chosen profile, files, settings, flags.
func TestProfilesLieUnderFiles(t *testing.T) {
	pkg := emptyPackage(t, map[string]string{
		"default": "spec: {hub: default, tag: default, revision: default, values: {defaultRevision: default, global: {hub: default}}}",
		"demo":    "spec: {tag: demo, revision: demo, values: {defaultRevision: demo, ownerName: demo}}",
	})
	merged, err := Merge(Inputs{
		Files: []File{{Name: "f", Text: []byte(inSpec("{profile: demo, revision: file, values: {ownerName: file}}"))}},
		Set:   []string{"values.ownerName=set"}, Revision: "flag",
	}, pkg)
	if err != nil {
		t.Fatal(err)
	}
	want := tree.Map{
		"profile": "demo", "hub": "default", "tag": "demo", "revision": "flag",
		"values": tree.Map{"defaultRevision": "demo", "ownerName": "set", "global": tree.Map{"hub": "default"}},
	}
	if merged.Profile != "demo" || !reflect.DeepEqual(merged.Spec, want) {
		t.Errorf("profile %s, spec %v, want %v", merged.Profile, merged.Spec, want)
	}
}

// TestRefusedFiles holds what a file may not be, and that the error names the file and what to do.
func TestRefusedFiles(t *testing.T) {
	pkg := emptyPackage(t, nil)
	for name, tc := range map[string]struct{ text, want string }{
		"two objects":         {inSpec("{}") + "---\n" + inSpec("{}"), "mesh.yaml: it holds 2 documents; one file holds one IstioOperator"},
		"another kind":        {"apiVersion: v1\nkind: ConfigMap\n", `mesh.yaml: kind is "ConfigMap"; only IstioOperator`},
		"another version":     {"apiVersion: install.istio.io/v1\nkind: IstioOperator\n", `apiVersion is "install.istio.io/v1"`},
		"no kind":             {"spec: {}\n", "kind is absent"},
		"a list":              {"- a\n", "the document is a list; it must be a mapping"},
		"no YAML":             {"a: [\n", "mesh.yaml: yaml: line"},
		"a key twice":         {inSpec("{hub: a, hub: b}"), `key "hub" already set in map`},
		"spec is text":        {inSpec("text"), "spec is a string; it must be a mapping"},
		"unknown beside spec": {inSpec("{}") + "metdata: {}\n", `mesh.yaml:4: unknown field "metdata"; did you mean "metadata"?`},
		"unknown metadata":    {inSpec("{}") + "metadata:\n  nam: x\n", `mesh.yaml:5: unknown field "nam" in metadata; did you mean "name"?`},
		"metadata is a list":  {inSpec("{}") + "metadata: []\n", "metadata is a list"},
		"an endless alias":    {"a: &a [*a]\n", "mesh.yaml:"},
		"profile is no text":  {inSpec("{profile: {a: b}}"), "profile is a mapping"},
		"profile is not there": {inSpec("{profile: defaul}"),
			`profile "defaul" is not in the install package, which has default; did you mean "default"?`},
		"profile is a path":     {inSpec("{profile: ../default}"), "looks like a path"},
		"infinity in a setting": {inSpec("{values: {a: .inf}}"), "is no number that JSON has"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Merge(Inputs{Files: []File{{Name: "mesh.yaml", Text: []byte(tc.text)}}}, pkg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// TestOlderFormsWarn holds that an older form says so, and a file that says nothing, with its file.
func TestOlderFormsWarn(t *testing.T) {
	pkg := emptyPackage(t, nil)
	for text, want := range map[string]string{
		"hub: a\n":               "mesh.yaml: it is a bare spec",
		inSpec("{namespace: a}"): "mesh.yaml: namespace is an older form of values.global.istioNamespace",
		inSpec("{addonComponents: {kiali: {}}}"): "mesh.yaml: addonComponents has no effect: no package has addons any " +
			"more; install kiali on their own",
		inSpec("{values: {pilot: {enabled: true}}}"):            "mesh.yaml: values.pilot.enabled is an older form of components.pilot",
		inSpec("{components: {ingressGateways: {a: {}}}}"):      "mesh.yaml: components.ingressGateways is a mapping, an older form",
		inSpec("{components: {istiodRemote: {enabled: true}}}"): "mesh.yaml: components.istiodRemote has no effect",
		"# only\n---\n": "mesh.yaml: it is empty",
		"apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n": "mesh.yaml: it has no spec",
		inSpec("{}") + "status: {a: b}\n":                              "mesh.yaml: status is not read",
	} {
		merged, err := Merge(Inputs{Files: []File{{Name: "mesh.yaml", Text: []byte(text)}}}, pkg)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(merged.Warnings) != 1 || !strings.HasPrefix(merged.Warnings[0], want) {
			t.Errorf("%s: warnings %q, want %q", text, merged.Warnings, want)
		}
	}
}

// FuzzSetting holds that no setting panics, and that the path of an accepted one reads back as itself.
func FuzzSetting(f *testing.F) {
	for _, s := range []string{"a=b", `a\.b[0].c[name:x]=1`, "a[:x\\]]=", "[", "=", "a[-1].b=null"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, value, err := ParseSetting(text)
		if err != nil {
			return
		}
		again, err := tree.ParsePath(path.String())
		if err != nil || !reflect.DeepEqual(again, path) {
			t.Errorf("path %q of %q reads back as %v: %v", path, text, again, err)
		}
		_ = tree.Set(tree.Map{}, path, value)
	})
}

// FuzzFile holds that no file panics, and that an accepted one merged with itself says the same.
func FuzzFile(f *testing.F) {
	for _, s := range []string{inSpec("{hub: a}"), "hub: a", inSpec("{components: {ingressGateways: {a: {}}}}"), "a: &a [*a]",
		inSpec("{values: {pilot: {enabled: false}}}")} {
		f.Add(s)
	}
	pkg := emptyPackage(f, nil)
	f.Fuzz(func(t *testing.T, text string) {
		once, err := Merge(Inputs{Files: []File{{Name: "f", Text: []byte(text)}}}, pkg)
		if err != nil {
			return
		}
		twice, err := Merge(Inputs{Files: []File{{Name: "f", Text: []byte(text)}, {Name: "f", Text: []byte(text)}}}, pkg)
		if err != nil || !reflect.DeepEqual(once.Spec, twice.Spec) {
			t.Errorf("once %v, twice %v: %v", once.Spec, twice, err)
		}
	})
}
