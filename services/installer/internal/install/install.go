// Package install is the engine behind the commands that install: a functional core, inputs → (objects, warnings,
// error), one package a stage. profile reads the install package, merge lays the inputs on each other, validate judges
// the result, values gives each component's chart its values, render makes the objects, overlay changes them as the
// user says, and order sorts them. tree and manifest are what the stages hand on.
package install

import (
	"errors"
	"fmt"
	"strings"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/overlay"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/validate"
	"fairlead.dev/services/installer/internal/install/values"
)

// Inputs of an installation.
type Inputs struct {
	merge.Inputs
	Package *profile.Package
	// Force turns what validation refuses into warnings.
	Force bool
	// JudgeMesh judges the mesh configuration that the objects have, if the user has written any; nil if nothing does.
	JudgeMesh MeshJudge
}

// Result is what an installation consists of.
type Result struct {
	// Merged is the merged spec.
	Merged *merge.Merged
	// Components are the enabled ones, in the order in which they are installed.
	Components []values.Instance
	// Objects in the order in which they are applied.
	Objects  []*manifest.Object
	Warnings []string
}

// Spec merges the inputs, and judges the result.
func Spec(in Inputs) (*merge.Merged, error) {
	merged, err := merge.Merge(in.Inputs, in.Package)
	if err != nil {
		return nil, err
	}
	var refused []string
	for _, p := range validate.Check(merged.Spec, &in.Package.Mapping) {
		text := merged.Where(p.Keys) + p.Path() + ": " + p.Text
		if p.Warning || in.Force {
			merged.Warnings = append(merged.Warnings, text)
			continue
		}
		refused = append(refused, text)
	}
	if len(refused) > 0 {
		return nil, errors.New(strings.Join(refused, "\n"))
	}
	return merged, nil
}

// Generate makes the objects of an installation. It reads nothing but the package, and what JudgeMesh reads.
func Generate(in Inputs) (*Result, error) {
	merged, err := Spec(in)
	if err != nil {
		return nil, err
	}
	r := &Result{Merged: merged, Warnings: merged.Warnings, Components: values.Instances(merged.Spec, &in.Package.Mapping)}
	for _, c := range r.Components {
		if err := r.component(in.Package, c); err != nil {
			return nil, err
		}
	}
	order.Sort(r.Objects)
	if err := r.judgeMesh(in); err != nil {
		return nil, err
	}
	return r, nil
}

// component adds the objects of one component.
func (r *Result) component(pkg *profile.Package, c values.Instance) error {
	chart, err := pkg.Chart(c.Chart)
	if err != nil {
		return fmt.Errorf("component %s: %w", c.Label, err)
	}
	objects, err := render.Chart(c.Label, chart, c.Values, c.Namespace)
	if err != nil {
		return err
	}
	k8s := tree.GetMap(c.Spec, "k8s")
	warnings, err := render.Settings(c.Label, objects, k8s, c.Workload, c.Name, c.Revision())
	if err != nil {
		return err
	}
	r.Warnings = append(r.Warnings, warnings...)
	overlays, err := overlay.Read(k8s["overlays"])
	if err != nil {
		return fmt.Errorf("component %s: k8s.overlays: %w", c.Label, err)
	}
	for i, o := range overlays {
		// An overlay may have the name that the object has in another package, with the revision or without.
		name := strings.TrimSuffix(o.Name, c.Revision())
		if here, ok := c.Overlays[o.Kind+"/"+name]; ok {
			overlays[i].Name = here + c.Revision()
		}
	}
	if warnings, err = overlay.Apply(c.Label, objects, overlays); err != nil {
		return err
	}
	r.Warnings = append(r.Warnings, warnings...)
	r.Objects = append(r.Objects, objects...)
	return nil
}
