// Package compare says what differs between two sets of Kubernetes objects.
package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Sides of a comparison, for Difference.Only.
const (
	First  = "first"
	Second = "second"
)

// Difference is an object that is not the same on both sides.
type Difference struct {
	// Object names it: "Deployment.apps istio-system/istiod".
	Object string `json:"object"`
	// Only is the side that has it, if the other has not.
	Only string `json:"only,omitempty"`
	// Changes are the fields that differ.
	Changes []tree.Change `json:"changes,omitempty"`
}

// Read reads the objects of a text; lists of kind List are their items. A document without apiVersion, kind or name is
// an error that names the file.
func Read(file, text string) ([]*manifest.Object, error) {
	var all []*manifest.Object
	for i, doc := range manifest.Documents(text) {
		m, err := tree.ParseStrictMap([]byte(doc))
		if err != nil {
			return nil, fmt.Errorf("%s: document %d is no object: %s", file, i+1, strings.ReplaceAll(err.Error(), "\n", ""))
		}
		items := []any{m}
		if list, ok := m["items"].([]any); ok && m["kind"] == "List" {
			items = list
		}
		for _, item := range items {
			t, _ := item.(tree.Map)
			if len(t) == 0 {
				continue
			}
			o := &manifest.Object{Tree: t, Source: file}
			if o.Kind() == "" || o.APIVersion() == "" || o.Name() == "" {
				return nil, fmt.Errorf("%s: document %d has no kind, apiVersion or metadata.name, so it is no object", file, i+1)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// key is the identity of an object: its version may differ.
type key struct{ group, kind, namespace, name string }

func (k key) String() string {
	kind := k.kind
	if k.group != "" {
		kind += "." + k.group
	}
	if k.namespace != "" {
		return kind + " " + k.namespace + "/" + k.name
	}
	return kind + " " + k.name
}

// Manifests compares the objects of two sides. A side that has an object twice is an error.
func Manifests(a, b []*manifest.Object, o Options) ([]Difference, error) {
	first, err := o.choose(a, true)
	if err != nil {
		return nil, fmt.Errorf("the first manifest: %w", err)
	}
	second, err := o.choose(b, false)
	if err != nil {
		return nil, fmt.Errorf("the second manifest: %w", err)
	}
	var keys []key
	for k := range first {
		keys = append(keys, k)
	}
	for k := range second {
		if first[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.group, b.group), cmp.Compare(a.namespace, b.namespace),
			cmp.Compare(a.name, b.name))
	})
	var all []Difference
	for _, k := range keys {
		d := Difference{Object: k.String()}
		switch {
		case first[k] == nil:
			d.Only = Second
		case second[k] == nil:
			d.Only = First
		default:
			if d.Changes = tree.Changes(first[k], second[k]); len(d.Changes) == 0 {
				continue
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// choose returns the objects that are compared, those of the first side under their new names.
func (o Options) choose(objects []*manifest.Object, rename bool) (map[key]tree.Map, error) {
	chosen := map[key]tree.Map{}
	from := map[key]string{}
	for _, obj := range objects {
		k := key{obj.Group(), obj.Kind(), obj.Namespace(), obj.Name()}
		if len(o.selected) > 0 && !matches(o.selected, k) || matches(o.ignored, k) {
			continue
		}
		t := obj.Tree
		if rename {
			k, t = o.rename(k, t)
		}
		if old, twice := from[k]; twice {
			return nil, fmt.Errorf("%s is there twice, in %s and %s; remove one, or leave it out with --ignore", k, old, obj.Source)
		}
		chosen[k], from[k] = t, obj.Source
	}
	return chosen, nil
}
