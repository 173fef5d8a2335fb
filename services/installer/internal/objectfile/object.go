// Package objectfile reads files of Kubernetes and Istio objects, in YAML or JSON. List finds the files that paths name,
// ReadFile reads one within bounds, and Parse divides it into Objects, each with the line where it begins. It checks only
// what every object has (apiVersion, kind, metadata.name). Two rooms call it: local/meshfile for `fairlead up`, and the
// commands of cli that send documents to config-watcher, which validates them.
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

// Object is one document of a mesh file.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// File and Line say where the document begins.
	File string `json:"-"`
	Line int    `json:"-"`
	// Raw is the document as written, or the item of a List as JSON.
	Raw []byte `json:"-"`
	// first is the line of Raw's first line in File; 0 for an item of a List.
	first int
}

// String names the object as error messages do: kind, namespace and name.
func (o *Object) String() string {
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// Error is a refusal of something a user wrote.
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
}

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

// Refuse makes an Error about o.
func (o *Object) Refuse(field, problem, remedy string) *Error {
	return &Error{File: o.File, Line: o.Line, Object: o.String(), Field: field, Problem: problem, Remedy: remedy}
}

// decode fills out from o strictly: an unknown field, or one given twice, is refused.
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

// decodeText fills out from YAML that an object holds as a text, in the field named.
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

// CleanYAML takes the wrapping of the YAML library off its errors.
func CleanYAML(err error) string {
	s := err.Error()
	for _, prefix := range []string{"error unmarshaling JSON: ", "while decoding JSON: ", "error converting YAML to JSON: ", "yaml: ", "json: "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}

// Parse divides one file into its objects. Empty documents are skipped; namespaces are defaulted; the items of a List
// of any kind are objects of their own.
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
		first, start := line, line+leadingBlank(doc)
		// The reader swallows the "---" line after each document.
		line += bytes.Count(doc, []byte("\n")) + 1
		if isBlank(doc) {
			continue
		}
		var over *yamltext.Error
		if errors.As(yamltext.Check(doc), &over) {
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

// complete checks and defaults what every object must have.
func (o *Object) complete() error {
	missing := func(field string) error {
		return &Error{File: o.File, Line: o.Line, Field: field, Problem: "is empty", Remedy: "every document needs apiVersion, kind and metadata.name"}
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

// leadingBlank counts the lines of comments and blanks before the first line of content.
func leadingBlank(doc []byte) int {
	n := 0
	for l := range bytes.Lines(doc) {
		if t := bytes.TrimSpace(l); len(t) > 0 && t[0] != '#' && !bytes.Equal(t, []byte("---")) {
			return n
		}
		n++
	}
	return 0
}

func isBlank(doc []byte) bool {
	for l := range bytes.Lines(doc) {
		if t := bytes.TrimSpace(l); len(t) > 0 && t[0] != '#' && !bytes.Equal(t, []byte("---")) {
			return false
		}
	}
	return true
}
