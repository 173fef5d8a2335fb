package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// Definitions that others manage, such as those of an Istio in the cluster, stay theirs: a further manager of the same
// fields would be a conflict in the next upgrade of the first. One that does not serve a version that the installation
// needs is an error, and one that lacks fields a note, unless the installation takes it over.

// definition is a CustomResourceDefinition that somebody else manages, beside what the installation has.
type definition struct {
	cluster.ID
	// manager of its versions, for people: "helm (release istio-base)".
	manager string
	// versions that it does not serve, and fields that it does not have: ".spec.http[].retries".
	versions, fields []string
}

// oldDefinition is the error of a definition that cannot be left as it is.
type oldDefinition struct{ definition }

// Error names the versions.
func (d *oldDefinition) Error() string {
	return fmt.Sprintf("%s, which %s manages, does not serve %s: upgrade it there, or take it over with --force", d.ID, d.manager,
		strings.Join(d.versions, ", "))
}

// theirs compares a definition of others with the installation's.
func theirs(live, want *unstructured.Unstructured) definition {
	d := definition{ID: cluster.Of(live), manager: managerOf(live)}
	there := map[string]map[string]any{}
	for _, v := range versions(live) {
		there[fmt.Sprint(v["name"])] = v
	}
	for _, v := range versions(want) {
		name := fmt.Sprint(v["name"])
		if v["served"] != true {
			continue
		}
		if other := there[name]; other == nil || other["served"] != true {
			d.versions = append(d.versions, name)
		} else {
			lacks(&d.fields, "", schemaOf(other), schemaOf(v))
		}
	}
	slices.Sort(d.fields)
	d.fields = slices.Compact(d.fields)
	return d
}

// Lacks says who manages a definition of others, and which versions and fields of the installation's it does not have.
func Lacks(live, want *unstructured.Unstructured) (manager string, versions, fields []string) {
	d := theirs(live, want)
	return d.manager, d.versions, d.fields
}

func versions(u *unstructured.Unstructured) (out []map[string]any) {
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	for _, item := range list {
		if v, ok := item.(map[string]any); ok {
			out = append(out, v)
		}
	}
	return out
}

func schemaOf(version map[string]any) map[string]any {
	schema, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
	return schema
}

// lacks adds the paths of fields that a schema has and the one that is there has not: those of objects, and of the
// items of lists and mappings. What lies below a missing field is not named.
func lacks(missing *[]string, path string, there, want map[string]any) {
	if there["x-kubernetes-preserve-unknown-fields"] == true {
		return
	}
	mine, _ := want["properties"].(map[string]any)
	other, _ := there["properties"].(map[string]any)
	for name, schema := range mine {
		below, ok := other[name].(map[string]any)
		if !ok {
			*missing = append(*missing, path+"."+name)
			continue
		}
		if schema, ok := schema.(map[string]any); ok {
			lacks(missing, path+"."+name, below, schema)
		}
	}
	for key, step := range map[string]string{"items": "[]", "additionalProperties": ".*"} {
		mine, ok := want[key].(map[string]any)
		other, found := there[key].(map[string]any)
		switch {
		case ok && found:
			lacks(missing, path+step, other, mine)
		case ok && there[key] != true && len(mine) > 0:
			*missing = append(*missing, path+step)
		}
	}
}

// managerOf names who manages the versions of a definition, or the most of it that anybody manages: of several the one
// that wrote last.
func managerOf(u *unstructured.Unstructured) string {
	manager, at := "", metav1.Time{}
	for _, m := range u.GetManagedFields() {
		if m.Subresource != "" || m.Manager == cluster.Manager || m.FieldsV1 == nil ||
			!strings.Contains(m.FieldsV1.GetRawString(), `"f:versions"`) {
			continue
		}
		if manager == "" || m.Time != nil && at.Before(m.Time) {
			if manager = m.Manager; m.Time != nil {
				at = *m.Time
			}
		}
	}
	manager = cmp.Or(manager, "somebody else")
	if release := u.GetAnnotations()["meta.helm.sh/release-name"]; release != "" {
		manager += " (release " + release + ")"
	}
	return manager
}

// notes say which definitions of others stay, and lack something: one line for each manager.
func notes(left []definition) (out []string) {
	by := map[string][]definition{}
	var managers []string
	for _, d := range left {
		if len(d.fields) == 0 {
			continue
		}
		if by[d.manager] == nil {
			managers = append(managers, d.manager)
		}
		by[d.manager] = append(by[d.manager], d)
	}
	slices.Sort(managers)
	for _, m := range managers {
		var names []string
		fields := 0
		for _, d := range by[m] {
			names = append(names, d.Name)
			fields += len(d.fields)
		}
		d := by[m][0]
		out = append(out, fmt.Sprintf(
			"%d CustomResourceDefinitions that %s manages stay as they are, and lack %d fields of the installation's, which objects cannot have "+
				"until they are upgraded there, or taken over with --force: %s; such as %s of %s",
			len(names), m, fields, strings.Join(names, ", "), d.fields[0], d.Name))
	}
	return out
}
