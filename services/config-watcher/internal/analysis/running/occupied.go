package running

import (
	"maps"
	"slices"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// occupies reports whether an object is something that others of its namespace can be about. So are Namespace objects,
// Pods and WorkloadEntries.
func occupies(k object.Key) bool {
	switch k.Kind {
	case "Gateway":
		return k.Group == kinds.GroupNetworking
	case "Service", "ServiceEntry", "Ingress":
		return true
	}
	return false
}

// occupy adds by to the number of things in a namespace that other objects can be about.
func (m *Mesh) occupy(namespace string, by int) {
	before := m.occupied[namespace]
	now := before + by
	if now <= 0 {
		delete(m.occupied, namespace)
	} else {
		m.occupied[namespace] = now
	}
	if (before > 0) != (now > 0) {
		m.touch(topic{subjectOccupied, namespace, ""})
	}
}

// checkOwnNamespace finds an object in a namespace in which nothing is that it could be about, as when the name is
// misspelt. It is for kinds that do not occupy a namespace. The root namespace and that of the control plane are about
// others.
func checkOwnNamespace(r *reader) {
	ns := r.namespace()
	if ns == r.settings().GetRootNamespace() || ns == kinds.MeshNamespace || r.object.Labels[managedBy] == managedByUp {
		return
	}
	r.record(subjectOccupied, ns, "")
	if r.mesh.occupied[ns] > 0 {
		return
	}
	remedy := "correct the namespace, or create its Namespace object if it is the right one"
	known := slices.Sorted(maps.Keys(r.mesh.occupied))
	r.report(finding.NamespaceEmpty, "metadata.namespace", ns,
		"no workload, Service or other object that this one could be about is in namespace "+ns,
		remedy+nearest.Hint(ns, known))
}
