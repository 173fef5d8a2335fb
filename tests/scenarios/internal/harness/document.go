package harness

import (
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one of several in a YAML text. What cannot be read has no content, and is the service's to refuse.
type document struct {
	text    string
	content tree
}

// splitDocuments divides a text at its "---" lines, and a List into its objects; documents that say nothing are left
// out.
func splitDocuments(text string) []document {
	var out []document
	var lines []string
	flush := func() {
		d := document{text: strings.Join(lines, "\n")}
		lines = nil
		var content tree
		err := yaml.Unmarshal([]byte(d.text), &content)
		if err == nil && content == nil {
			return
		}
		if err == nil {
			d.content = content
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
func (d document) objects() []document {
	items := d.list("items")
	if d.kind() != "List" || d.member("apiVersion") != "v1" || len(items) == 0 {
		return []document{d}
	}
	var out []document
	for _, item := range items {
		o, ok := item.(tree)
		if !ok {
			return []document{d}
		}
		out = append(out, document{text: encode(o), content: o})
	}
	return out
}

// at is what is at a path of the document, nil if nothing.
func (d document) at(path ...string) any {
	var at any = d.content
	for _, name := range path {
		m, ok := at.(tree)
		if !ok {
			return nil
		}
		at = m[name]
	}
	return at
}

// member is a string at a path, empty if there is none.
func (d document) member(path ...string) string {
	s, _ := d.at(path...).(string)
	return s
}

// list is one at a path.
func (d document) list(path ...string) []any {
	l, _ := d.at(path...).([]any)
	return l
}

// strings is a map of strings at a path.
func (d document) strings(path ...string) map[string]string {
	m, _ := d.at(path...).(tree)
	out := map[string]string{}
	for k, v := range m {
		out[k], _ = v.(string)
	}
	return out
}

// hasLabels tells whether the object has all of some labels, and that they are any.
func (d document) hasLabels(want map[string]string) bool {
	have := d.strings("metadata", "labels")
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return len(want) > 0
}

// ready tells what a Pod says.
func (d document) ready() bool {
	for _, c := range d.list("status", "conditions") {
		if m, ok := c.(tree); ok && m["type"] == "Ready" {
			return m["status"] == "True"
		}
	}
	return false
}

func (d document) kind() string { return d.member("kind") }

// ref is Kind/namespace/name.
func (d document) ref() string {
	return ref(d.kind(), d.member("metadata", "namespace"), d.member("metadata", "name"))
}

// ref names an object as scenarios do.
func ref(kind, namespace, name string) string {
	switch {
	case kind == "Namespace" || kind == "Node" || kind == "IngressClass":
		namespace = ""
	case namespace == "":
		namespace = "default"
	}
	return kind + "/" + namespace + "/" + name
}

// parseRef divides Kind/namespace/name.
func parseRef(name string) (kind, namespace, object string, err error) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("%q is not Kind/namespace/name", name)
	}
	return parts[0], parts[1], parts[2], nil
}

// withClusterIPs is a Service that names its addresses.
func (d document) withClusterIPs(ips []string) (document, error) {
	spec, ok := d.content["spec"].(tree)
	if !ok {
		spec = tree{}
		d.content["spec"] = spec
	}
	all := make([]any, len(ips))
	for i, ip := range ips {
		all[i] = ip
	}
	spec["clusterIP"], spec["clusterIPs"] = ips[0], all
	raw, err := json.Marshal(d.content)
	d.text = string(raw)
	return d, err
}

// completed is a ConfigMap of mesh settings with what the fleet needs in them besides. What is no MeshConfig is the
// service's to refuse.
func (d document) completed(onDemand bool) (document, error) {
	data, _ := d.content["data"].(tree)
	text, _ := data["mesh"].(string)
	m, err := meshOf(text, onDemand)
	if err != nil || data == nil {
		return d, nil //nolint:nilerr // config-watcher says what is wrong with it
	}
	data["mesh"] = string(m.config)
	raw, err := json.Marshal(d.content)
	d.text = string(raw)
	return d, err
}

// wantsClusterIP tells whether it is a Service that has to be given an address, as Kubernetes does.
func (d document) wantsClusterIP() bool {
	return d.kind() == "Service" && d.member("apiVersion") == "v1" && d.member("spec", "clusterIP") == "" &&
		len(d.list("spec", "clusterIPs")) == 0 && d.member("spec", "type") != "ExternalName"
}
