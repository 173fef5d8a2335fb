package compare

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

const server = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: mesh}
spec:
  replicas: 1
  template: {spec: {containers: [{name: a, image: x}, {name: b, image: v}], args: [1, 2]}}
`

func read(t testing.TB, text string) []*manifest.Object {
	t.Helper()
	objects, err := Read("file.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// said writes differences in lines.
func said(all []Difference) string {
	var b strings.Builder
	for _, d := range all {
		fmt.Fprintf(&b, "%s%s;", d.Object, map[string]string{First: " -", Second: " +"}[d.Only])
		for _, c := range d.Changes {
			b.WriteString(strings.Join(tree.DiffLines(c), ";") + ";")
		}
	}
	return b.String()
}

func TestManifests(t *testing.T) {
	const service = "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: mesh}}"
	edit := func(old, new string) string {
		if !strings.Contains(server, old) {
			t.Fatal(old)
		}
		return strings.Replace(server, old, new, 1)
	}
	for _, tc := range []struct{ name, a, b, chosen, ignored, renamed, want string }{
		{"the same objects do not differ", server, server, "", "", "", ""},
		{"neither order of documents nor lists of kind List matter", server + "---\n" + service,
			"{apiVersion: v1, kind: List, items: [" + service + "]}\n---" + server, "", "", "", ""},
		{"a version is a field", server, edit("apps/v1", "apps/v1beta1"), "", "", "",
			"Deployment.apps mesh/server;- apiVersion: apps/v1;+ apiVersion: apps/v1beta1;"},
		{"a group is another object", server, edit("apps/v1", "extensions/v1"), "", "", "",
			"Deployment.apps mesh/server -;Deployment.extensions mesh/server +;"},
		{"an object of one side", server, service, "", "", "", "Deployment.apps mesh/server -;Service mesh/s +;"},
		{"a field that changes", server, edit("replicas: 1", "replicas: 2"), "", "", "",
			"Deployment.apps mesh/server;- spec.replicas: 1;+ spec.replicas: 2;"},
		{"a field that is gone", server, edit("replicas: 1", ""), "", "", "", "Deployment.apps mesh/server;- spec.replicas: 1;"},
		{"an item with a name", server, edit("image: v", "image: z"), "", "", "",
			"Deployment.apps mesh/server;- spec.template.spec.containers[name:b].image: v;+ spec.template.spec.containers[name:b].image: z;"},
		{"a named item in front of others is added alone", server, edit("[{name: a,", "[{name: c}, {name: a,"), "", "", "",
			"Deployment.apps mesh/server;+ spec.template.spec.containers[name:c]:;+   name: c;"},
		{"the order of named items counts", server, edit("{name: a, image: x}, {name: b, image: v}", "{name: b, image: v}, {name: a, image: x}"),
			"", "", "",
			"Deployment.apps mesh/server;- spec.template.spec.containers (order):;-   - a;-   - b;+ spec.template.spec.containers (order):;+   - " +
				"b;+   - a;"},
		{"an item without a name", server, edit("[1, 2]", "[1, 3, 4]"), "", "", "",
			"Deployment.apps mesh/server;- spec.template.spec.args[1]: 2;+ spec.template.spec.args[1]: 3;+ spec.template.spec.args[2]: 4;"},
		{"selected objects alone", server, service, "Service:*:*", "", "", "Service mesh/s +;"},
		{"an empty part selects all", server, service, "::s,ConfigMap", "", "", "Service mesh/s +;"},
		{"ignored objects", server, service, "", "Deployment::ser*", "", "Service mesh/s +;"},
		{"renamed objects", server, edit("name: server", "name: other"), "", "", "Deployment:mesh:server->Deployment:*:other", ""},
		{"a rename keeps what differs", server, edit("name: server", "name: other, labels: {a: b}"), "", "", "Deployment:mesh:server->::other",
			"Deployment.apps mesh/other;+ metadata.labels:;+   a: b;"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o Options
			for _, err := range []error{o.Select(tc.chosen), o.Ignore(tc.ignored), o.Rename(tc.renamed)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := Manifests(read(t, tc.a), read(t, tc.b), o)
			if text := strings.ReplaceAll(said(got), "\n", ";"); err != nil || text != tc.want {
				t.Errorf("%s, %v\nwant %s", text, err, tc.want)
			}
		})
	}
}

func TestOfTwoTextsTheLinesAreShownThatDiffer(t *testing.T) {
	const head = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {x: "
	got, err := Manifests(read(t, head+`"a\nb\nc\nd\n"}}`), read(t, head+`"a\nB\nc\nD\ne\nd\n"}}`), Options{})
	const want = "ConfigMap c;- data.x, from line 2:\n-   b\n-   c;+ data.x, from line 2:\n+   B\n+   c\n+   D\n+   e;"
	if text := said(got); err != nil || text != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
}

func TestWhatCannotBeComparedIsNamed(t *testing.T) {
	if _, err := Read("file.yaml", "kind: X\n---\n"); err == nil ||
		!strings.Contains(err.Error(), "file.yaml: document 1 has no kind, apiVersion or metadata.name") {
		t.Errorf("no object: %v", err)
	}
	if _, err := Read("file.yaml", server+"---\na: [\n"); err == nil || !strings.Contains(err.Error(), "file.yaml: document 2") {
		t.Errorf("no YAML: %v", err)
	}
	if _, err := Manifests(read(t, server+"---"+server), nil, Options{}); err == nil ||
		!strings.Contains(err.Error(), "Deployment.apps mesh/server is there twice") {
		t.Errorf("an object twice: %v", err)
	}
	var o Options
	for name, err := range map[string]error{"a:b:c:d": o.Select("a:b:c:d"), "OLD->NEW": o.Rename("Service:a:b"),
		"* alone": o.Rename("a->b*")} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(server, server)
	f.Add("{apiVersion: v1, kind: List, items: [1, {}]}", "a: 1")
	f.Fuzz(func(_ *testing.T, a, b string) {
		first, err1 := Read("a", a)
		second, err2 := Read("b", b)
		if err1 == nil && err2 == nil {
			_, _ = Manifests(first, second, Options{})
		}
	})
}
