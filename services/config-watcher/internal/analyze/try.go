package analyze

import (
	"slices"

	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Try tells what would be found if changes were taken over: about the changed objects themselves, and newly about
// others. It leaves the mesh as it was. What is marked must have been judged, and Changes called, before.
func (m *Mesh) Try(changes []normalise.Change) (own, others []Finding) {
	undo := make([]func(), 0, len(changes))
	changed := map[object.Key]bool{}
	for _, c := range changes {
		changed[c.Key] = true
		undo = append(undo, m.restoring(c.Key))
		m.Take([]normalise.Change{c})
	}
	m.Judge(0)
	for k := range changed {
		own = append(own, m.Of(k)...)
	}
	others = slices.DeleteFunc(m.Changes().Appeared, func(f Finding) bool { return changed[f.Key] })
	for _, f := range slices.Backward(undo) {
		f()
	}
	m.Judge(0)
	m.Changes()
	return sorted(own), sorted(others)
}

// restoring returns what brings an object back as it is now.
func (m *Mesh) restoring(k object.Key) func() {
	at := ref{k.Namespace, k.Name}
	switch {
	case k.Group == "" && k.Kind == "Secret":
		old := m.secrets[at]
		return func() { m.takeSecret(at, old) }
	case k.Group == "" && k.Kind == "ConfigMap":
		old := m.configMaps[at]
		return func() { m.takeConfigMap(at, old) }
	case k.Group == "" && k.Kind == "Namespace":
		old := m.declared[k.Name]
		return func() { m.declare(k.Name, old) }
	case k.Group == "" && k.Kind == "Pod", k.Group == validate.GroupNetworking && k.Kind == "WorkloadEntry":
		old, had := m.workloads[k]
		return func() { m.takeWorkload(k, old, had) }
	}
	var old *object.Object
	if j := m.judged[k]; j != nil {
		old = j.object
	}
	return func() { m.Take([]normalise.Change{{Key: k, Object: old}}) }
}
