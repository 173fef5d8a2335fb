// Package render makes the objects of a component: its chart with its values, through Helm's engine, and then the
// Kubernetes settings of the component as strategic merges.
package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/engine"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// releaseName is what charts see as the name of the release. Istio's charts write it into labels.
const releaseName = "istio"

// noHelm is the version of Helm that charts see, by which they know that no Helm upgrades what they give.
const noHelm = "v0.0.0"

// Chart renders a chart with values for a component in a namespace.
func Chart(component string, c *chart.Chart, values tree.Map, namespace string) ([]*manifest.Object, error) {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.HelmVersion.Version = noHelm
	all, err := util.ToRenderValues(c, tree.CopyMap(values),
		common.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, fmt.Errorf("component %s: values of chart %s: %w", component, c.Name(), err)
	}
	memory := memory{}
	files, err := engine.Engine{CustomTemplateFuncs: memory.functions()}.Render(c, all)
	if err != nil {
		return nil, fmt.Errorf("component %s: %w", component, err)
	}
	var objects []*manifest.Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
			continue // NOTES.txt and helpers
		}
		found, err := manifest.Parse(component, name, files[name], memory.written)
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// memory keeps what the functions of one rendering parsed and wrote. A chart of CRDs parses and writes a megabyte of
// YAML again and again; the text that it writes is also the text of the objects.
type memory struct {
	parsed map[string]tree.Map
	wrote  map[string]tree.Map
}

// large is the length from which a text is kept.
const large = 4096

func (m *memory) functions() template.FuncMap {
	m.parsed, m.wrote = map[string]tree.Map{}, map[string]tree.Map{}
	return template.FuncMap{"fromYaml": m.fromYAML, "toYaml": m.toYAML}
}

// fromYAML is Helm's function: an error is the entry Error.
func (m *memory) fromYAML(text string) tree.Map {
	if t, ok := m.parsed[text]; ok {
		delete(m.parsed, text) // charts read a text twice: for a name, and to write it
		return t
	}
	t, err := tree.ParseMap([]byte(text))
	if err != nil {
		return tree.Map{"Error": err.Error()}
	}
	if len(text) >= large {
		m.parsed[text] = tree.CopyMap(t)
	}
	return t
}

// toYAML is Helm's function: an error is empty text.
func (m *memory) toYAML(v any) string {
	text, err := tree.Text(v)
	if err != nil {
		return ""
	}
	s := strings.TrimSuffix(string(text), "\n")
	if t, ok := v.(tree.Map); ok && len(s) >= large {
		m.wrote[s] = tree.CopyMap(t)
	}
	return s
}

// written is manifest.Known of what toYAML wrote.
func (m *memory) written(doc string) (tree.Map, bool) {
	t, ok := m.wrote[doc]
	return t, ok
}
