package install

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
)

// TestMeshConfigIsJudged: what the user writes is judged as the chart completes it; each finding names where its field
// was written, and an error refuses the installation unless it is forced.
func TestMeshConfigIsJudged(t *testing.T) {
	fs := maps.Clone(ours)
	mapping := strings.Replace(string(ours["components.yaml"].Data), "values: [",
		"values: [{spec: meshConfig, value: meshConfig, specWins: true}, ", 1)
	fs["components.yaml"] = &fstest.MapFile{Data: []byte(mapping)}
	fs["charts/server/templates/mesh.yaml"] = &fstest.MapFile{Data: []byte(`
apiVersion: v1
kind: ConfigMap
metadata: {name: mesh, namespace: x}
data:
  mesh: |
    {{- toYaml (merge (dict "connectTimeout" "1s") (.Values.meshConfig | default dict)) | nindent 4 }}
`)}
	pkg, err := profile.Open(fs)
	if err != nil {
		t.Fatal(err)
	}
	var judged string
	verdict := MeshVerdict{
		Errors:   []MeshFinding{{Field: "extensionProviders[1].name", Message: "is wrong"}, {Message: "is no configuration"}},
		Warnings: []MeshFinding{{Field: "rootNamespace", Message: "has no effect"}},
	}
	judge := func(text []byte) (MeshVerdict, error) {
		judged = string(text)
		return verdict, nil
	}
	file := merge.File{Name: "mesh.yaml",
		Text: []byte("apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec:\n  meshConfig:\n    extensionProviders:\n    - name: " +
			"A\n    - name: B\n")}
	with := func(set ...string) Inputs {
		return Inputs{Package: pkg, JudgeMesh: judge, Inputs: merge.Inputs{Files: []merge.File{file}, Set: set}}
	}

	if _, err := Generate(Inputs{Package: pkg, JudgeMesh: judge}); err != nil || judged != "" {
		t.Errorf("nothing was written: judged %q, %v", judged, err)
	}
	in := with("values.meshConfig.rootNamespace=x")
	in.Force = true
	result, err := Generate(in)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"--set values.meshConfig.rootNamespace=x: values.meshConfig.rootNamespace: has no effect",
		"mesh.yaml:7: meshConfig.extensionProviders[1].name: is wrong",
		"mesh.yaml:4: meshConfig: is no configuration",
	}
	if !slices.Equal(result.Warnings[max(0, len(result.Warnings)-3):], want) {
		t.Errorf("warnings %q, want %q at the end", result.Warnings, want)
	}
	if !strings.Contains(judged, "name: B") || !strings.Contains(judged, "connectTimeout: 1s") {
		t.Errorf("judged %q, want what the chart has made", judged)
	}
	verdict.Warnings = nil
	if _, err := Generate(with()); err == nil || err.Error() != want[1]+"\n"+want[2] {
		t.Errorf("error %v, want the two", err)
	}
	in = with()
	in.JudgeMesh = func([]byte) (MeshVerdict, error) { return MeshVerdict{}, errors.New("no such program") }
	if _, err := Generate(in); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("error %v, want that of the judge", err)
	}
}
