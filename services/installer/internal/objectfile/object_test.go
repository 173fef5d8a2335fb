package objectfile_test

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/objectfile"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: web, command: [web]}
`

// TestLists: the items of a List are objects with their own lines.
func TestLists(t *testing.T) {
	item := "- " + strings.ReplaceAll(strings.TrimSpace(deployment), "\n", "\n  ") + "\n"
	for name, tc := range map[string]struct{ text, want string }{
		"List": {"apiVersion: v1\nkind: List\nitems:\n" + item +
			"- apiVersion: v1\n  kind: Service\n  metadata: {name: web, namespace: shop}\n",
			"4 apps/v1 Deployment default/web, 14 v1 Service shop/web"},
		"behind another": {"# one\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n# two\nkind: List\nitems:\n" + item,
			"3 v1 Namespace /a, 10 apps/v1 Deployment default/web"},
		"of one kind": {
			"apiVersion: networking.istio.io/v1\nkind: VirtualServiceList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n",
			"4 networking.istio.io/v1 VirtualService default/a, 5 networking.istio.io/v1 VirtualService default/b"},
		"in a List": {"kind: List\nitems:\n- kind: List\n  items:\n  - {apiVersion: v1, kind: Service, metadata: {name: a}}\n",
			"3 v1 Service default/a"},
		"empty":           {"apiVersion: v1\nkind: List\nitems: []\n", ""},
		"no items":        {"apiVersion: v1\nkind: List\n", "error m.yaml:1: List: items: is no list of objects"},
		"items of no use": {"apiVersion: v1\nkind: List\nitems:\n- 5\n", "error m.yaml:4: List: items[0]"},
		"without a name":  {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service}\n", "error m.yaml:4: metadata.name: is empty"},
		"an AllowList":    {"apiVersion: a/v1\nkind: AllowList\nmetadata: {name: a}\n", "1 a/v1 AllowList default/a"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := objectfile.Parse("m.yaml", []byte(tc.text))
			var got []string
			for _, o := range objects {
				got = append(got, fmt.Sprintf("%d %s %s %s/%s", o.Line, o.APIVersion, o.Kind, o.Namespace, o.Name))
			}
			if err != nil {
				got = append(got, "error "+err.Error())
			}
			if text := strings.Join(got, ", "); !strings.HasPrefix(text, tc.want) || tc.want == "" && text != "" {
				t.Errorf("got %s\nwant %s", text, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(deployment))
	f.Add([]byte("---\n---\na: &a [*a]"))
	f.Fuzz(func(t *testing.T, content []byte) {
		objects, err := objectfile.Parse("f", content)
		for _, o := range objects {
			if o.Kind == "" || o.Name == "" || o.APIVersion == "" || o.Line < 1 {
				t.Errorf("incomplete object %+v, error %v", o, err)
			}
		}
	})
}
