package install

import (
	"errors"
	"fmt"
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

// MeshJudge judges a mesh configuration, the text of entry "mesh" of a ConfigMap, as the mesh will.
type MeshJudge func(text []byte) (MeshVerdict, error)

// MeshVerdict is what a judge says. With errors the mesh would refuse the configuration as a whole.
type MeshVerdict struct{ Errors, Warnings []MeshFinding }

// MeshFinding is one error or warning about a field of MeshConfig; an empty field stands for the whole.
type MeshFinding struct{ Field, Message string }

// judgeMesh judges the mesh configuration of the objects, as the charts have completed it. That of a profile is not
// judged each time.
func (r *Result) judgeMesh(in Inputs) error {
	written := func(keys ...string) bool { v, _ := tree.Get(r.Merged.User, keys...); return v != nil }
	if in.JudgeMesh == nil || !written("meshConfig") && !written("values", "meshConfig") {
		return nil
	}
	var refused []string
	for _, o := range r.Objects {
		text := tree.GetString(o.Tree, "data", "mesh")
		if o.Kind() != "ConfigMap" || text == "" {
			continue
		}
		verdict, err := in.JudgeMesh([]byte(text))
		if err != nil {
			return fmt.Errorf("meshConfig cannot be judged: %w", err)
		}
		for _, f := range verdict.Warnings {
			r.Warnings = append(r.Warnings, r.aboutMesh(f))
		}
		for _, f := range verdict.Errors {
			refused = append(refused, r.aboutMesh(f))
		}
	}
	if in.Force {
		r.Warnings = append(r.Warnings, refused...)
		return nil
	}
	if len(refused) > 0 {
		return errors.New(strings.Join(refused, "\n"))
	}
	return nil
}

// aboutMesh names the input and the field that a finding is about.
func (r *Result) aboutMesh(f MeshFinding) string {
	path := "meshConfig"
	if f.Field != "" {
		path += "." + f.Field
	}
	keys := strings.FieldsFunc(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' })
	for n := len(keys); n > 0; n-- {
		if where := r.Merged.Where(keys[:n]); where != "" {
			return where + path + ": " + f.Message
		}
		if where := r.Merged.Where(append([]string{"values"}, keys[:n]...)); where != "" {
			return where + "values." + path + ": " + f.Message
		}
	}
	return path + ": " + f.Message
}
