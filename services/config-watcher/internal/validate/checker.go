package validate

import (
	"fmt"
	"slices"
	"sort"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxProblems bounds what is reported of one object.
const maxProblems = 100

// checker gathers the problems of one object.
type checker struct {
	object   string
	doc      *manifest.Document
	problems object.Problems
	// warnings are of what is accepted and has no effect.
	warnings object.Problems
	// packed makes strictMessage look into messages that are packed in others.
	packed bool
}

// fail adds a problem at a JSON path. value is what the user wrote, nil if there is nothing to show.
func (c *checker) fail(path string, value any, reason, remedy string) {
	if len(c.problems) >= maxProblems {
		return
	}
	p := object.Problem{Object: c.object, Field: path, Value: object.Quote(value), Reason: reason, Remedy: remedy}
	if c.doc != nil {
		p.Location = c.doc.FieldLocation(path)
	}
	c.problems = append(c.problems, p)
}

// warn says that what stands at a JSON path has no effect.
func (c *checker) warn(path string, v verdict) { c.remark(path, "has no effect: "+v.reason, v.remedy) }

// remark says something of what stands at a JSON path, and is accepted.
func (c *checker) remark(path, reason, remedy string) {
	if len(c.warnings) >= maxProblems {
		return
	}
	p := object.Problem{Object: c.object, Field: path, Reason: reason, Remedy: remedy}
	if c.doc != nil {
		p.Location = c.doc.FieldLocation(path)
	}
	c.warnings = append(c.warnings, p)
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func field(path, name string) string { return manifest.Field(path, name) }

func contains(list []string, s string) bool { return slices.Contains(list, s) }

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// metadataFields are those of Kubernetes' ObjectMeta; sources deliver objects as exported from a cluster too.
var metadataFields = []string{"name", "namespace", "labels", "annotations", "resourceVersion", "generation", "creationTimestamp", "uid", "finalizers",
	"ownerReferences", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName", "selfLink"}

// meta checks metadata and copies it into o.
func (c *checker) meta(tree map[string]any, o *object.Object) {
	m, ok := tree["metadata"].(map[string]any)
	if !ok {
		c.fail("metadata", tree["metadata"], "missing or no object", "give the object a name under metadata.name")
		return
	}
	for _, name := range sortedKeys(m) {
		if !contains(metadataFields, name) {
			c.unknown("metadata", name, metadataFields)
		}
	}
	if name, isString := m["name"].(string); !isString || name == "" {
		c.fail("metadata.name", m["name"], "missing or no string", "give the object a name")
	} else if !dnsSubdomain(name) {
		c.fail("metadata.name", name, "not a valid name", "use at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit")
	}
	if ns, present := m["namespace"]; present && ns != nil {
		switch s, isString := ns.(string); {
		case !isString:
			c.fail("metadata.namespace", ns, "expected a string, found "+typeName(ns), "name a namespace")
		case s != "" && o.Key.Namespace == "":
			c.fail("metadata.namespace", s, o.Key.Kind+" has no namespace", "remove it")
		case s != "" && !dnsLabel(s):
			c.fail("metadata.namespace", s, "not a valid namespace", "use at most 63 lower-case letters, digits and '-'")
		}
	}
	o.Labels = c.stringMap("metadata.labels", m["labels"])
	for _, k := range sortedKeys(o.Labels) {
		c.label("metadata.labels", k, o.Labels[k])
	}
	o.Annotations = c.stringMap("metadata.annotations", m["annotations"])
	if s, isString := m["creationTimestamp"].(string); isString && s != "" {
		t, err := parseTime(s)
		if err != nil {
			c.fail("metadata.creationTimestamp", s, "no point in time", `write it like "2026-01-31T12:00:00Z", or remove it`)
		}
		o.Created = t
	}
	switch g := m["generation"].(type) {
	case int64:
		o.Generation = g
	case nil:
	default:
		c.fail("metadata.generation", g, "expected a whole number", "remove it")
	}
}

func (c *checker) stringMap(path string, v any) map[string]string {
	if v == nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		c.fail(path, v, "expected a map, found "+typeName(v), "write key: value pairs below it")
		return nil
	}
	out := make(map[string]string, len(m))
	for _, k := range sortedKeys(m) {
		s, ok := m[k].(string)
		if !ok && m[k] != nil {
			c.fail(field(path, k), m[k], "expected a string, found "+typeName(m[k]), "put it in quotes")
			continue
		}
		out[k] = s
	}
	return out
}
