package running

import (
	"slices"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// DryRun returns the findings that changes would cause: about the changed objects, and new ones about others. It leaves
// the mesh as it was. Before the call Analyze must have left nothing, and Changes must have been called.
func (m *Mesh) DryRun(changes []normalise.Change) (own, others []finding.Finding) {
	undos := make([]func(), 0, len(changes))
	changed := map[object.Key]bool{}
	for _, c := range changes {
		changed[c.Key] = true
		undos = append(undos, m.undo(c.Key))
		m.Apply([]normalise.Change{c})
	}
	m.Analyze(0)
	for k := range changed {
		own = append(own, m.Of(k)...)
	}
	others = slices.DeleteFunc(m.Changes().Appeared, func(f finding.Finding) bool { return changed[f.Key] })
	for _, f := range slices.Backward(undos) {
		f()
	}
	m.Analyze(0)
	m.Changes()
	return finding.Sort(own), finding.Sort(others)
}

// undo returns a function that restores the present state of an object.
func (m *Mesh) undo(k object.Key) func() {
	at := ref{k.Namespace, k.Name}
	switch {
	case k.Group == "" && k.Kind == "Secret":
		old := m.secrets[at]
		return func() { m.updateSecret(at, old) }
	case k.Group == "" && k.Kind == "ConfigMap":
		old := m.configMaps[at]
		return func() { m.updateConfigMap(at, old) }
	case k.Group == "" && k.Kind == "Namespace":
		old := m.declared[k.Name]
		return func() { m.updateNamespace(k.Name, old) }
	case k.Group == "" && k.Kind == "Pod", k.Group == kinds.GroupNetworking && k.Kind == "WorkloadEntry":
		old, had := m.workloads[k]
		return func() { m.updateWorkload(k, old, had) }
	}
	var old *object.Object
	if j := m.analyzed[k]; j != nil {
		old = j.object
	}
	return func() { m.Apply([]normalise.Change{{Key: k, Object: old}}) }
}
