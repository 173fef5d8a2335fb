// Package objectfile reads files of Kubernetes and Istio objects, in YAML or JSON. List finds the files that paths
// name, ReadFile reads one within bounds, and Parse divides it into Objects, each with the line where it begins. It
// checks only what every object has (apiVersion, kind, metadata.name). Two rooms call it: local/meshfile for `fairlead
// up`, and the commands of cli that send documents to config-watcher, which validates them.
package objectfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"
)

// DefaultNamespace is where objects live that name no namespace.
const DefaultNamespace = "default"

// Object is one document of a file, or one item of a List in it.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// File and Line are where the document begins.
	File string `json:"-"`
	Line int    `json:"-"`
	// Raw is the text of the document, or the item of a List as JSON.
	Raw []byte `json:"-"`
	// first is the line of Raw's first line in File; 0 for an item of a List.
	first int
}

// String is "Kind namespace/name", as in error messages.
func (o *Object) String() string {
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// Error says what is wrong with a file or an object that a person wrote, and what to do about it.
type Error struct {
	// File and Line of the document; Line 0 if unknown.
	File string
	Line int
	// Object as "Kind namespace/name"; may be empty.
	Object string
	// Field is a path like spec.template.spec.containers[0].command; may be empty.
	Field string
	// Problem says what is wrong and Remedy what to do about it.
	Problem, Remedy string
	// Cause may be nil.
	Cause error
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Error implements error: "file:line: object: field: problem; remedy".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	for _, part := range []string{e.Object, e.Field, e.Problem} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Refuse returns an Error about o.
func (o *Object) Refuse(field, problem, remedy string) *Error {
	return &Error{File: o.File, Line: o.Line, Object: o.String(), Field: field, Problem: problem, Remedy: remedy}
}

// Decode decodes o into out strictly: an unknown field, or one given twice, is an error.
func (o *Object) Decode(out any) error {
	const remedy = "correct the field, or remove it"
	text, err := yaml.YAMLToJSONStrict(o.Raw)
	if err != nil {
		return o.Refuse("", CleanYAML(err), remedy)
	}
	strict, err := kjson.UnmarshalStrict(text, out)
	if err = errors.Join(append(strict, err)...); err != nil {
		return o.Refuse("", CleanYAML(err), remedy)
	}
	return nil
}

// DecodeText decodes YAML that stands as a text in a field of o, such as MeshConfig in a ConfigMap. field and remedy
// are for the error.
func (o *Object) DecodeText(field, text string, out any, remedy string) error {
	err := yamltext.Check([]byte(text))
	if err == nil {
		err = yaml.Unmarshal([]byte(text), out)
	}
	if err != nil {
		return o.Refuse(field, CleanYAML(err), remedy)
	}
	return nil
}

// CleanYAML returns the text of an error of the YAML library without the library's prefixes.
func CleanYAML(err error) string {
	s := err.Error()
	for _, prefix := range []string{"error unmarshaling JSON: ", "while decoding JSON: ", "error converting YAML to JSON: ", "yaml: ",
		"json: ", "unmarshal errors:\n  "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}

// Parse divides the content of a file into objects. It skips empty documents, fills in the namespace "default", and
// returns the items of Lists as objects of their own. It returns the good objects together with all errors, joined.
func Parse(file string, content []byte) ([]*Object, error) {
	var (
		objects []*Object
		errs    []error
		line    = 1
	)
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, &Error{File: file, Line: line, Problem: CleanYAML(err), Remedy: "correct the YAML"}
		}
		before, found := firstContent(doc)
		first, start := line, line+before
		// The reader swallows the "---" line after each document.
		line += bytes.Count(doc, []byte("\n")) + 1
		if !found {
			continue
		}
		if over, ok := errors.AsType[*yamltext.Error](yamltext.Check(doc)); ok {
			errs = append(errs, &Error{File: file, Line: first + over.Line - 1, Problem: over.Reason, Remedy: over.Remedy})
			continue
		}
		o := &Object{File: file, Line: start, Raw: doc, first: first}
		if err := yaml.Unmarshal(doc, o); err != nil {
			problem := &Error{File: file, Line: start, Problem: CleanYAML(err), Remedy: "correct the YAML"}
			if bad := yamltext.Unreadable(doc, err); bad.Line > 1 {
				problem.Line, problem.Problem, problem.Remedy = first+bad.Line-1, bad.Reason, bad.Remedy
			}
			errs = append(errs, problem)
			continue
		}
		items, err := o.items()
		if err != nil {
			errs = append(errs, err)
		}
		for _, o := range items {
			if err := o.complete(); err != nil {
				errs = append(errs, err)
				continue
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(errs...)
}

// complete checks the fields that every object needs, and fills in the namespace.
func (o *Object) complete() error {
	missing := func(field string) error {
		return &Error{File: o.File, Line: o.Line, Field: field, Problem: "is empty",
			Remedy: "every document needs apiVersion, kind and metadata.name"}
	}
	switch {
	case o.APIVersion == "":
		return missing("apiVersion")
	case o.Kind == "":
		return missing("kind")
	case o.Name == "":
		return missing("metadata.name")
	}
	if o.Namespace == "" && o.Kind != "Namespace" {
		o.Namespace = DefaultNamespace
	}
	return nil
}

// Blank reports whether the content of a file holds no object: it is empty, or made of comments and "---" alone.
func Blank(content []byte) bool {
	_, found := firstContent(content)
	return !found
}

// firstContent counts the lines before the first that is neither empty nor a comment nor "---"; found is false if all
// lines are.
func firstContent(doc []byte) (before int, found bool) {
	for l := range bytes.Lines(doc) {
		if t := bytes.TrimSpace(l); len(t) > 0 && t[0] != '#' && !bytes.Equal(t, []byte("---")) {
			return before, true
		}
		before++
	}
	return before, false
}
