package world

import (
	"encoding/json"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one of several in a YAML text. What cannot be read has no content, and is the service's to refuse.
type document struct {
	text    string
	content tree
}

// splitDocuments divides a text at its "---" lines; documents that say nothing are left out.
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
		out = append(out, d)
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

// member is a string at a path of the document, empty if there is none.
func (d document) member(path ...string) string {
	var at any = d.content
	for _, name := range path {
		m, ok := at.(tree)
		if !ok {
			return ""
		}
		at = m[name]
	}
	s, _ := at.(string)
	return s
}

func (d document) kind() string { return d.member("kind") }

// ref is Kind/namespace/name.
func (d document) ref() string {
	return ref(d.kind(), d.member("metadata", "namespace"), d.member("metadata", "name"))
}

// ref names an object as scenarios do.
func ref(kind, namespace, name string) string {
	switch {
	case kind == "Namespace" || kind == "Node":
		namespace = ""
	case namespace == "":
		namespace = "default"
	}
	return kind + "/" + namespace + "/" + name
}

// withClusterIP is a Service that names an address.
func (d document) withClusterIP(ip string) (document, error) {
	spec, ok := d.content["spec"].(tree)
	if !ok {
		spec = tree{}
		d.content["spec"] = spec
	}
	spec["clusterIP"] = ip
	raw, err := json.Marshal(d.content)
	d.text = string(raw)
	return d, err
}

// wantsClusterIP tells whether it is a Service that has to be given an address, as Kubernetes does.
func (d document) wantsClusterIP() bool {
	return d.kind() == "Service" && d.member("apiVersion") == "v1" && d.member("spec", "clusterIP") == "" && d.member("spec", "type") != "ExternalName"
}
