// Package manifest holds Kubernetes objects between the stages that make them: it divides rendered text into objects
// and names them.
package manifest

import (
	"fmt"
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

// Object is one Kubernetes object.
type Object struct {
	// Tree is the object. Stages change it in place, and clear Text when they do.
	Tree tree.Map
	// Text is the object as YAML, if it is known to say the same as Tree, else empty.
	Text string
	// Component and Source say where it came from: a component of the spec, and a template of its chart.
	Component, Source string
}

// Kind returns the object's kind.
func (o *Object) Kind() string { return tree.GetString(o.Tree, "kind") }

// APIVersion returns the object's apiVersion.
func (o *Object) APIVersion() string { return tree.GetString(o.Tree, "apiVersion") }

// Name returns the object's name.
func (o *Object) Name() string { return tree.GetString(o.Tree, "metadata", "name") }

// Namespace returns the object's namespace; empty if it names none.
func (o *Object) Namespace() string { return tree.GetString(o.Tree, "metadata", "namespace") }

// Group returns the API group: empty for core.
func (o *Object) Group() string {
	group, _, ok := strings.Cut(o.APIVersion(), "/")
	if !ok {
		return ""
	}
	return group
}

// ID names the object for people: "Deployment istio-system/istiod".
func (o *Object) ID() string {
	if ns := o.Namespace(); ns != "" {
		return o.Kind() + " " + ns + "/" + o.Name()
	}
	return o.Kind() + " " + o.Name()
}

// Set replaces the tree.
func (o *Object) Set(t tree.Map) { o.Tree, o.Text = t, "" }

// Known returns the tree of a text that the caller has parsed before, and ok; Parse parses what is not known.
type Known func(text string) (t tree.Map, ok bool)

// Parse divides the text of one rendered template into objects. Documents of blanks and comments alone are no objects.
func Parse(component, source, text string, known Known) ([]*Object, error) {
	var objects []*Object
	for i, doc := range Documents(text) {
		t, ok := known(doc)
		if !ok {
			var err error
			if t, err = tree.ParseMap([]byte(doc)); err != nil {
				return nil, fmt.Errorf("component %s: document %d of template %s is no object: %w", component, i+1, source, err)
			}
		}
		if len(t) == 0 {
			continue
		}
		o := &Object{Tree: t, Component: component, Source: source}
		if ok {
			o.Text = doc
		}
		if o.Kind() == "" || o.APIVersion() == "" || o.Name() == "" {
			return nil, fmt.Errorf("component %s: document %d of template %s is an object without kind, apiVersion or name", component, i+1, source)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Documents divides YAML text at its "---" lines, and leaves out documents of blanks and comments.
func Documents(text string) []string {
	var docs []string
	start := 0
	add := func(doc string) {
		if doc = trim(doc); doc != "" {
			docs = append(docs, doc)
		}
	}
	for at := 0; at < len(text); {
		end := strings.IndexByte(text[at:], '\n')
		if end < 0 {
			end = len(text) - at
		}
		if line := text[at : at+end]; strings.HasPrefix(line, "---") && strings.TrimSpace(strings.TrimLeft(line, "-")) == "" {
			add(text[start:at])
			start = min(at+end+1, len(text))
		}
		at += end + 1
	}
	add(text[start:])
	return docs
}

// trim removes blank lines and comments from the start, and blanks from the end.
func trim(doc string) string {
	for doc != "" {
		line, rest, _ := strings.Cut(doc, "\n")
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
			break
		}
		doc = rest
	}
	return strings.TrimRight(doc, " \t\r\n")
}
