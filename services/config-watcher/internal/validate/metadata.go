package validate

import (
	"maps"
	"slices"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// metadataFields are the fields of Kubernetes' ObjectMeta, all of them, since users also load objects exported from a
// cluster.
var metadataFields = []string{"name", "namespace", "labels", "annotations", "resourceVersion", "generation", "creationTimestamp", "uid",
	"finalizers",
	"ownerReferences", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName", "selfLink"}

// metadata checks an object's metadata and copies it into o.
func metadata(c *check.Checker, d *decode.Decoder, o *object.Object) {
	m, ok := c.Doc.Tree["metadata"].(map[string]any)
	if !ok {
		c.Fail("metadata", c.Doc.Tree["metadata"], "missing or no object", "give the object a name under metadata.name")
		return
	}
	d.Members("metadata", m, metadataFields)
	if name, isString := m["name"].(string); !isString || name == "" {
		c.Fail("metadata.name", m["name"], "missing or no string", "give the object a name")
	} else if !check.DNSSubdomain(name) {
		c.Fail("metadata.name", name, "not a valid name",
			"use at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit")
	}
	if ns, present := m["namespace"]; present && ns != nil {
		switch s, isString := ns.(string); {
		case !isString:
			c.Fail("metadata.namespace", ns, "expected a string, found "+decode.TypeName(ns), "name a namespace")
		case s != "" && o.Key.Namespace == "":
			c.Fail("metadata.namespace", s, o.Key.Kind+" has no namespace", "remove it")
		case s != "" && !check.DNSLabel(s):
			c.Fail("metadata.namespace", s, "not a valid namespace", "use at most 63 lower-case letters, digits and '-'")
		}
	}
	o.Labels = stringMap(c, "metadata.labels", m["labels"])
	c.Labels("metadata.labels", o.Labels)
	o.Annotations = stringMap(c, "metadata.annotations", m["annotations"])
	if k := kinds.Find(o.Key.Group, o.Key.Kind); k.NewSpec != nil {
		istioAnnotations(c, o)
	}
	if s, isString := m["creationTimestamp"].(string); isString && s != "" {
		t, err := decode.ParseTime(s)
		if err != nil {
			c.Fail("metadata.creationTimestamp", s, "no point in time", `write it like "2026-01-31T12:00:00Z", or remove it`)
		}
		o.Created = t
	}
	switch g := m["generation"].(type) {
	case int64:
		o.Generation = g
	case nil:
	default:
		c.Fail("metadata.generation", g, "expected a whole number", "remove it")
	}
}

// internalAnnotations are annotations that Istio writes itself and refuses from users.
var internalAnnotations = []string{"internal.istio.io/parents", "internal.istio.io/parent-namespace",
	"internal.istio.io/webhook-always-reject"}

// istioAnnotations refuses annotations that no user may set on an object of Istio's kinds.
func istioAnnotations(c *check.Checker, o *object.Object) {
	for _, name := range internalAnnotations {
		if v, ok := o.Annotations[name]; ok {
			c.Fail(manifest.Field("metadata.annotations", name), v, "reserved for Istio itself", "remove it")
		}
	}
	if v, ok := o.Annotations[authz.DryRunAnnotation]; ok && o.Key.Kind != "AuthorizationPolicy" {
		c.Fail(manifest.Field("metadata.annotations", authz.DryRunAnnotation), v, "a "+o.Key.Kind+" cannot be tried", "remove it")
	}
}

func stringMap(c *check.Checker, path string, v any) map[string]string {
	if v == nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		c.Fail(path, v, "expected a map, found "+decode.TypeName(v), "write key: value pairs below it")
		return nil
	}
	out := make(map[string]string, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s, ok := m[k].(string)
		if !ok && m[k] != nil {
			c.Fail(manifest.Field(path, k), m[k], "expected a string, found "+decode.TypeName(m[k]), "put it in quotes")
			continue
		}
		out[k] = s
	}
	return out
}
