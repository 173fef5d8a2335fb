package decode

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

var kubernetesUnknown = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// strictKubernetes turns an error of sigs.k8s.io/json, `unknown field "spec.ports[0].prt"`, into a problem with a
// suggestion from the Go type.
func (d *Decoder) kubernetesField(msg string, into any, tree map[string]any) {
	m := kubernetesUnknown.FindStringSubmatch(msg)
	if m == nil {
		d.Fail("", nil, msg, "")
		return
	}
	path, name := m[2], m[2]
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		name = path[i+1:]
	}
	if m[1] == "duplicate" {
		d.Fail(path, nil, "field is set twice", "keep one of them")
		return
	}
	in := strings.TrimSuffix(strings.TrimSuffix(path, name), ".")
	beside, _ := valueAt(tree, in).(map[string]any)
	d.unknown(in, name, goFields(reflect.TypeOf(into), in), beside)
}

// valueAt returns the value at a path of a tree; nil if there is none.
func valueAt(tree any, path string) any {
	for _, seg := range segments(path) {
		switch t := tree.(type) {
		case map[string]any:
			tree = t[seg]
		case []any:
			i, err := strconv.Atoi(seg)
			if err != nil || i >= len(t) {
				return nil
			}
			tree = t[i]
		}
	}
	return tree
}

func segments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// goFields lists the JSON names of the struct at a path within t.
func goFields(t reflect.Type, path string) []string {
	for _, seg := range segments(path) {
		t = deref(t)
		if _, err := strconv.Atoi(seg); err == nil || t.Kind() == reflect.Map {
			if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
				t = t.Elem()
			}
			continue
		}
		next, ok := structField(t, seg)
		if !ok {
			return nil
		}
		t = next
	}
	var out []string
	eachField(deref(t), func(name string, _ reflect.Type) { out = append(out, name) })
	return out
}

func structField(t reflect.Type, json string) (found reflect.Type, ok bool) {
	eachField(t, func(name string, ft reflect.Type) {
		if name == json {
			found, ok = ft, true
		}
	})
	return found, ok
}

func eachField(t reflect.Type, f func(name string, t reflect.Type)) {
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if sf.Anonymous && name == "" {
			eachField(deref(sf.Type), f)
			continue
		}
		if name != "" && name != "-" {
			f(name, sf.Type)
		}
	}
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}
