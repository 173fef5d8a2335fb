package validate

import (
	"iter"
	"maps"
	"slices"
	"strconv"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxProblems bounds the problems, and the warnings, of one object.
const maxProblems = 100

// checker collects the problems and warnings of one object. The methods named after a field or a type check it; path
// and at are the JSON path of what they check.
type checker struct {
	object string
	// namespace is the object's; empty for a cluster-scoped object.
	namespace string
	doc       *manifest.Document
	problems  object.Problems
	// warnings are about fields that are accepted.
	warnings object.Problems
	// packed is true within the value of an EnvoyFilter: strictMessage then looks into google.protobuf.Any, too, and an
	// unknown field is a warning.
	packed bool
	// missing are the paths that strict decoding has refused; meant are the fields that misspelt names stand for. See
	// repair.
	missing, meant []string
}

// fail adds a problem at a JSON path. value is what the user wrote, nil if there is nothing to show.
func (c *checker) fail(path string, value any, reason, remedy string) {
	c.add(&c.problems, path, value, reason, remedy)
}

// warn says that the field at a JSON path has no effect.
func (c *checker) warn(path string, v verdict) { c.remark(path, "has no effect: "+v.reason, v.remedy) }

// remark adds a warning about an accepted field at a JSON path.
func (c *checker) remark(path, reason, remedy string) {
	c.add(&c.warnings, path, nil, reason, remedy)
}

// failIf, warnIf and remarkIf do so if a field breaks a rule. Their arguments are evaluated either way.
func (c *checker) failIf(broken bool, path string, value any, reason, remedy string) {
	if broken {
		c.fail(path, value, reason, remedy)
	}
}

func (c *checker) warnIf(broken bool, path string, v verdict) {
	if broken {
		c.warn(path, v)
	}
}

func (c *checker) remarkIf(broken bool, path, reason, remedy string) {
	if broken {
		c.remark(path, reason, remedy)
	}
}

func (c *checker) add(to *object.Problems, path string, value any, reason, remedy string) {
	if len(*to) >= maxProblems || c.follows(path) {
		return
	}
	p := object.Problem{Object: c.object, Field: path, Value: object.Quote(value), Reason: reason, Remedy: remedy}
	if c.doc != nil {
		p.Location = c.doc.FieldLocation(path)
	}
	*to = append(*to, p)
}

// again records that item i of a list has the key k, and returns the last earlier item that has it.
func again[K comparable](seen map[K]int, k K, i int) (earlier int, dup bool) {
	earlier, dup = seen[k]
	seen[k] = i
	return earlier, dup
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// each yields the items of the list at path, each with its own path.
func each[T any](path string, list []T) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for i, item := range list {
			if !yield(index(path, i), item) {
				return
			}
		}
	}
}

func field(path, name string) string { return manifest.Field(path, name) }

func sortedKeys[V any](m map[string]V) []string {
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

// metadataFields are the fields of Kubernetes' ObjectMeta, all of them, since users also load objects exported from a
// cluster.
var metadataFields = []string{"name", "namespace", "labels", "annotations", "resourceVersion", "generation", "creationTimestamp", "uid",
	"finalizers",
	"ownerReferences", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName", "selfLink"}

// meta checks metadata and copies it into o.
func (c *checker) meta(tree map[string]any, o *object.Object) {
	m, ok := tree["metadata"].(map[string]any)
	if !ok {
		c.fail("metadata", tree["metadata"], "missing or no object", "give the object a name under metadata.name")
		return
	}
	for _, name := range sortedKeys(m) {
		if !slices.Contains(metadataFields, name) {
			c.unknown("metadata", name, metadataFields, m)
		}
	}
	if name, isString := m["name"].(string); !isString || name == "" {
		c.fail("metadata.name", m["name"], "missing or no string", "give the object a name")
	} else if !dnsSubdomain(name) {
		c.fail("metadata.name", name, "not a valid name",
			"use at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit")
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
	if k := kinds.Find(o.Key.Group, o.Key.Kind); k.NewSpec != nil {
		c.ownAnnotations(o)
	}
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

// internalAnnotations are annotations that Istio writes itself and refuses from users.
var internalAnnotations = []string{"internal.istio.io/parents", "internal.istio.io/parent-namespace",
	"internal.istio.io/webhook-always-reject"}

// ownAnnotations refuses annotations that no user may set on an object of Istio's kinds.
func (c *checker) ownAnnotations(o *object.Object) {
	for _, name := range internalAnnotations {
		if v, ok := o.Annotations[name]; ok {
			c.fail(field("metadata.annotations", name), v, "reserved for Istio itself", "remove it")
		}
	}
	const dryRun = "istio.io/dry-run"
	if v, ok := o.Annotations[dryRun]; ok && o.Key.Kind != "AuthorizationPolicy" {
		c.fail(field("metadata.annotations", dryRun), v, "a "+o.Key.Kind+" cannot be tried", "remove it")
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
