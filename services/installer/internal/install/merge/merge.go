// Package merge lays the inputs of an installation on each other: the default profile, the chosen profile, files in
// their order, and then settings of the command line. Older forms become today's on the way, each with a warning.
package merge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// File is one file of the user's.
type File struct {
	// Name is for errors.
	Name string
	Text []byte
}

// Inputs of a merge.
type Inputs struct {
	Files []File
	// Set are settings, path=value, in their order.
	Set []string
	// Revision overrides the spec's, if it is not empty.
	Revision string
	// Profile overrides the files' and settings', if it is not empty.
	Profile string
}

// Merged is the result.
type Merged struct {
	// Profile is the name of the chosen profile.
	Profile string
	// Name is metadata.name of the last file that has one.
	Name string
	// User is what files and settings say, Spec the same on top of the profiles.
	User, Spec tree.Map
	Warnings   []string
	files      []File
	sets       []setting
}

// Profiles of clusters whose control plane is elsewhere; an external one reads its configuration there.
const (
	remote   = "remote"
	external = "external"
)

// Merge merges. Package pkg has the profiles.
func Merge(in Inputs, pkg *profile.Package) (*Merged, error) {
	m := &Merged{User: tree.Map{}, files: in.Files}
	for _, f := range in.Files {
		spec, err := m.file(f)
		if err != nil {
			return nil, err
		}
		if err := m.modern(spec, f.Name, &pkg.Mapping); err != nil {
			return nil, err
		}
		m.User = tree.Merge(m.User, spec)
	}
	if err := m.settings(in.Set); err != nil {
		return nil, err
	}
	if err := m.modern(m.User, "--set", &pkg.Mapping); err != nil {
		return nil, err
	}
	if in.Revision != "" {
		m.User["revision"] = in.Revision
	}
	if m.Profile = in.Profile; m.Profile == "" {
		switch p := m.User["profile"].(type) {
		case nil:
			// Istio's charts take a profile as a value.
			if setting := pkg.Setting("values.profile"); setting != nil && setting.Does != "" {
				m.Profile = tree.GetString(m.User, "values", "profile")
			}
		case string:
			m.Profile = p
		default:
			return nil, fmt.Errorf("profile is %s; it must be the name of a profile", tree.Kind(p))
		}
	}
	// In Istio's charts this value alone makes a cluster remote, whatever the profile.
	if setting := pkg.Setting("values.istiodRemote.enabled"); setting != nil && setting.Does != "" && m.Profile != external {
		if on, _ := tree.Get(m.User, "values", "istiodRemote", "enabled"); on == true {
			m.Profile = remote
		}
	}
	if m.Profile == "" {
		m.Profile = profile.Default
	}
	base, err := pkg.Spec(profile.Default)
	if err != nil {
		return nil, err
	}
	if m.Profile != profile.Default {
		over, err := pkg.Spec(m.Profile)
		if err != nil {
			return nil, err
		}
		base = tree.Merge(base, over)
	}
	m.Spec = tree.Merge(base, m.User)
	return m, nil
}

// apiVersion and kind of the files.
const (
	apiVersion = "install.istio.io/v1alpha1"
	kind       = "IstioOperator"
)

// fields of the object beside its spec.
var objectFields = []string{"apiVersion", "kind", "metadata", "spec", "status"}

// file reads the spec of one file: an IstioOperator, or a bare spec.
func (m *Merged) file(f File) (tree.Map, error) {
	docs := documents(string(f.Text))
	if len(docs) > 1 {
		return nil, fmt.Errorf("%s: it holds %d documents; one file holds one IstioOperator, so divide it and give each with -f", f.Name,
			len(docs))
	}
	if len(docs) == 0 {
		m.warn("%s: it is empty, so that it changes nothing", f.Name)
		return tree.Map{}, nil
	}
	doc, err := tree.ParseStrictMap(f.Text)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", f.Name, strings.ReplaceAll(err.Error(), "\n", ""))
	}
	if !isObject(doc) {
		m.warn("%s: it is a bare spec; give it apiVersion: %s and kind: %s, and put the rest below spec", f.Name, apiVersion, kind)
		return doc, nil
	}
	for _, want := range []struct{ field, value string }{{"kind", kind}, {"apiVersion", apiVersion}} {
		if got := doc[want.field]; got != want.value {
			return nil, fmt.Errorf("%s: %s is %v; only %s of %s can be installed", f.Name, want.field, shown(got), kind, apiVersion)
		}
	}
	for _, k := range tree.Keys(doc) {
		if !slices.Contains(objectFields, k) {
			return nil, fmt.Errorf("%s:%s unknown field %q%s", f.Name, lineOf(f, []string{k}), k, hint(k, objectFields))
		}
	}
	if err := metadata(f, doc["metadata"]); err != nil {
		return nil, err
	}
	if name := tree.GetString(doc, "metadata", "name"); name != "" {
		m.Name = name
	}
	if doc["status"] != nil {
		m.warn("%s: status is not read", f.Name)
	}
	switch spec := doc["spec"].(type) {
	case nil:
		m.warn("%s: it has no spec, so that it changes nothing", f.Name)
		return tree.Map{}, nil
	case tree.Map:
		return spec, nil
	default:
		return nil, fmt.Errorf("%s: spec is %s; it must be a mapping", f.Name, tree.Kind(spec))
	}
}

func shown(v any) string {
	if v == nil {
		return "absent"
	}
	return strconv.Quote(fmt.Sprint(v))
}

func isObject(doc tree.Map) bool {
	for _, k := range []string{"apiVersion", "kind", "spec"} {
		if _, ok := doc[k]; ok {
			return true
		}
	}
	return false
}

// documents divides a file at its "---" lines; documents of blanks and comments do not count.
func documents(text string) []string {
	var docs []string
	var b strings.Builder
	filled := false
	flush := func() {
		if filled {
			docs = append(docs, b.String())
		}
		b.Reset()
		filled = false
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "---") && (len(line) == 3 || strings.ContainsAny(line[3:4], " \t\r\n")) {
			flush()
			line = line[3:]
		}
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
			filled = true
		}
		b.WriteString(line)
	}
	flush()
	return docs
}

func (m *Merged) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(m.Warnings, text) {
		m.Warnings = append(m.Warnings, text)
	}
}

// Operator returns a spec as an IstioOperator.
func Operator(spec tree.Map) tree.Map {
	return tree.Map{"apiVersion": apiVersion, "kind": kind, "spec": spec}
}
