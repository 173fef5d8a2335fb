// Package document reads the objects of Kubernetes that a scenario writes, as far as a fleet has to know them: Split
// divides a YAML text, and what Kubernetes would do with Services and Pods is read from trees of maps.
package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// MeshObject is the name of the ConfigMap with the mesh's settings.
const MeshObject = "istio"

// Tree is a mapping of JSON.
type Tree = map[string]any

// Document is one of several in a YAML text. What cannot be read has no content, and is the service's to refuse.
type Document struct {
	Text    string
	Content Tree
}

// New is the document of an object.
func New(content Tree) Document { return Document{Text: Encode(content), Content: content} }

// Object makes the tree of an object of the core group with further members.
func Object(kind, namespace, name string, members Tree) Tree {
	metadata := Tree{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := Tree{"apiVersion": "v1", "kind": kind, "metadata": metadata}
	maps.Copy(o, members)
	return o
}

// WithLabels sets the labels of a tree of Object, if there are any, and returns it.
func WithLabels(o Tree, labels map[string]string) Tree {
	if len(labels) > 0 {
		o["metadata"].(Tree)["labels"] = Texts(labels)
	}
	return o
}

// Texts is a mapping of texts as a Tree.
func Texts(m map[string]string) Tree {
	out := Tree{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Encode writes a tree as JSON.
func Encode(o Tree) string {
	raw, err := json.Marshal(o)
	if err != nil {
		return err.Error() // it has strings and numbers only
	}
	return string(raw)
}

// Split divides a text at its "---" lines, and a List into its objects; documents that say nothing are left out.
func Split(text string) []Document {
	var out []Document
	var lines []string
	flush := func() {
		d := Document{Text: strings.Join(lines, "\n")}
		lines = nil
		var content Tree
		err := yaml.Unmarshal([]byte(d.Text), &content)
		if err == nil && content == nil {
			return
		}
		if err == nil {
			d.Content = content
		}
		out = append(out, d.objects()...)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if line == "---" || strings.HasPrefix(line, "--- ") {
			flush()
			continue
		}
		lines = append(lines, line)
	}
	flush()
	return out
}

// objects are those of a List, or the document itself.
func (d Document) objects() []Document {
	items := d.List("items")
	if d.Kind() != "List" || d.Member("apiVersion") != "v1" || len(items) == 0 {
		return []Document{d}
	}
	var out []Document
	for _, item := range items {
		o, ok := item.(Tree)
		if !ok {
			return []Document{d}
		}
		out = append(out, New(o))
	}
	return out
}

// At is what is at a path of the document, nil if nothing.
func (d Document) At(path ...string) any {
	var at any = d.Content
	for _, name := range path {
		m, ok := at.(Tree)
		if !ok {
			return nil
		}
		at = m[name]
	}
	return at
}

// Member is a string at a path, empty if there is none.
func (d Document) Member(path ...string) string {
	s, _ := d.At(path...).(string)
	return s
}

// List is one at a path.
func (d Document) List(path ...string) []any {
	l, _ := d.At(path...).([]any)
	return l
}

// Strings is a map of strings at a path.
func (d Document) Strings(path ...string) map[string]string {
	m, _ := d.At(path...).(Tree)
	out := map[string]string{}
	for k, v := range m {
		out[k], _ = v.(string)
	}
	return out
}

// HasLabels tells whether the object has all of some labels, and that they are any.
func (d Document) HasLabels(want map[string]string) bool {
	have := d.Strings("metadata", "labels")
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return len(want) > 0
}

// Kind is the object's.
func (d Document) Kind() string { return d.Member("kind") }

// Namespace is what the object says, empty if nothing.
func (d Document) Namespace() string { return d.Member("metadata", "namespace") }

// Name is the object's.
func (d Document) Name() string { return d.Member("metadata", "name") }

// Ref is Kind/namespace/name, with the kind as KindName has it.
func (d Document) Ref() string {
	return Ref(KindName(d.Member("apiVersion"), d.Kind()), d.Namespace(), d.Name())
}

// groupGatewayAPI has a kind that Istio's group has too.
const groupGatewayAPI = "gateway.networking.k8s.io"

// KindName is the kind as scenarios name it: with its group if that is the Gateway of the Gateway API, the bare Gateway
// is Istio's.
func KindName(apiVersion, kind string) string {
	if group, _, _ := strings.Cut(apiVersion, "/"); group == groupGatewayAPI && kind == "Gateway" {
		return kind + "." + group
	}
	return kind
}

// Ref names an object as scenarios do.
func Ref(kind, namespace, name string) string {
	switch {
	case kind == "Namespace" || kind == "Node" || kind == "IngressClass" || kind == "GatewayClass":
		namespace = ""
	case namespace == "":
		namespace = "default"
	}
	return kind + "/" + namespace + "/" + name
}

// ParseRef divides Kind/namespace/name.
func ParseRef(name string) (kind, namespace, object string, err error) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("%q is not Kind/namespace/name", name)
	}
	return parts[0], parts[1], parts[2], nil
}

// IsNamed tells whether "Kind namespace/name" or "Kind name" names the object.
func (d Document) IsNamed(name string) bool {
	kind, rest, _ := strings.Cut(name, " ")
	if !strings.Contains(rest, "/") {
		rest = "/" + rest
	}
	return d.Ref() == kind+"/"+rest
}

// OfMesh tells of kinds that the webhook checks.
func (d Document) OfMesh() bool {
	group, _, _ := strings.Cut(d.Member("apiVersion"), "/")
	return strings.HasSuffix(group, ".istio.io") || group == "fairlead.dev"
}

// Age is when the object says that it was created; zero if it says nothing.
func (d Document) Age() time.Time {
	at, _ := time.Parse(time.RFC3339, d.Member("metadata", "creationTimestamp")) // what is no time is none
	return at
}
