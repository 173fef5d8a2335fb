package overlay

import (
	"reflect"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

const object = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, labels: {a: b}}, spec: {list: [x, z, w], items: [{name: m, v: 1}, {name: n.o}]}}`

func run(t testing.TB, path string, v any) (*manifest.Object, []string, error) {
	t.Helper()
	m, err := tree.ParseMap([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	o := &manifest.Object{Tree: m}
	warnings, err := Apply("pilot", []*manifest.Object{o},
		[]Overlay{{Kind: "Deployment", Name: "d", Patches: []Patch{{Path: path, Value: v}}}})
	return o, warnings, err
}

// TestPatches holds what a patch does to a field.
func TestPatches(t *testing.T) {
	for _, tc := range []struct {
		path      string
		value     any
		at, want  string
		warn, err string
	}{
		{path: "spec.list[0]", value: "y1", at: "spec", want: "{list: [y1, z, w]}"},
		{path: "spec.list.[z]", value: "y1", at: "spec", want: "{list: [x, y1, w]}"},
		{path: "spec.list.[:z]", value: "y1", at: "spec", want: "{list: [x, y1, w]}"},
		{path: "spec.list[-1]", value: "y1", at: "spec", want: "{list: [x, z, w, y1]}"},
		{path: "spec.list[9]", value: "y1", at: "spec", want: "{list: [x, z, w, y1]}"},
		{path: "spec.list.[w]", at: "spec", want: "{list: [x, z]}"},
		{path: "spec.list", at: "spec", want: "{list: null}"},
		{path: "spec.list", value: []any{"q"}, at: "spec", want: "{list: [q]}"},
		{path: "spec.items.[name:m].v", value: float64(2), at: "spec", want: "{items: [{name: m, v: 2}, {name: n.o}]}"},
		{path: "spec.items.[name:n.o].v", value: float64(2), at: "spec", want: "{items: [{name: m, v: 1}, {name: n.o, v: 2}]}"},
		{path: "spec.items.[name:m]", at: "spec", want: "{items: [{name: n.o}]}"},
		{path: `metadata.labels.c\.d`, value: "e", at: "metadata", want: "{labels: {a: b, c.d: e}}"},
		{path: "spec.new.field", value: true, at: "spec", want: "{new: {field: true}}"},
		{path: "spec.text", value: "a: b\n", at: "spec", want: "{text: {a: b}}"},
		{path: "spec.text", value: "5", at: "spec", want: "{text: '5'}"},
		{path: "spec.text", value: "[a]", at: "spec", want: "{text: '[a]'}"},
		{path: "spec.items.[name:q].v", value: "x", warn: "item spec.items[name:q] is not there, so that nothing changes"},
		{path: "spec.nope.x", warn: "field spec.nope is not there, so that nothing changes"},
		{path: "spec.list[9]", warn: "place spec.list[9] is not there"},
		{path: "", value: "x", warn: "it has no path, so that nothing changes"},
		{path: "spec.list.x", value: "y1", err: `spec.list is a list, which has no field "x"`},
		{path: "spec.list[", value: "y1", err: "a bracket is open"},
	} {
		t.Run(tc.path, func(t *testing.T) {
			o, warnings, err := run(t, tc.path, tc.value)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) ||
					!strings.Contains(err.Error(), "component pilot: k8s.overlays[0] (Deployment d): patches[0]: ") {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || strings.Contains(strings.Join(warnings, ""), tc.warn) != true || (tc.warn == "") != (len(warnings) == 0) {
				t.Fatalf("error %v, warnings %q", err, warnings)
			}
			want, err := tree.ParseMap([]byte(object))
			if err != nil {
				t.Fatal(err)
			}
			if tc.want != "" {
				changed, err := tree.ParseMap([]byte(tc.want))
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range changed {
					if v == nil {
						tree.Delete(want, tc.at, k)
					} else {
						tree.Put(want, v, tc.at, k)
					}
				}
			}
			if !reflect.DeepEqual(o.Tree, want) {
				t.Errorf("got %v, want %v", o.Tree, want)
			}
		})
	}
}

// TestAnOverlayOfNoObjectWarns holds that nothing is ignored in silence.
func TestAnOverlayOfNoObjectWarns(t *testing.T) {
	warnings, err := Apply("pilot", nil, []Overlay{{Kind: "Service", Name: "s", Patches: []Patch{{Path: "spec"}}}})
	if err != nil || len(warnings) != 1 ||
		warnings[0] != "component pilot: k8s.overlays[0] (Service s): the component has no such object, so that nothing changes" {
		t.Errorf("warnings %q, error %v", warnings, err)
	}
}

// FuzzPatch holds that no path and value panic, and that a patched object can still be written.
func FuzzPatch(f *testing.F) {
	f.Add("spec.items.[name:m].v", "a: b")
	f.Add("spec.list[-1]", "")
	f.Add("spec[0].x", "1")
	f.Fuzz(func(t *testing.T, path, text string) {
		var v any = text
		if text == "" {
			v = nil
		}
		o, _, err := run(t, path, v)
		if err == nil {
			_, err = tree.Text(o.Tree)
		}
		_ = err
	})
}
