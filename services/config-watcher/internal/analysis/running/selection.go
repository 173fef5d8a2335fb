package running

import (
	"maps"
	"slices"

	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// selection is the set of workloads that a selector of Gateways selects.
type selection struct {
	selector  map[string]string
	users     int
	workloads map[object.Key]struct{}
}

// namespaces lists the namespaces of the workloads, sorted.
func (s *selection) namespaces() []string {
	if s == nil {
		return nil
	}
	var out []string
	for k := range s.workloads {
		out = append(out, k.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// meets reports whether two selections have a workload in common.
func (s *selection) meets(o *selection) bool {
	if s == nil || o == nil {
		return false
	}
	if len(o.workloads) < len(s.workloads) {
		s, o = o, s
	}
	for k := range s.workloads {
		if _, ok := o.workloads[k]; ok {
			return true
		}
	}
	return false
}

// countSelector counts the Gateways with a selector. The first one searches all workloads once.
func (m *Mesh) countSelector(selector map[string]string, add bool) {
	key := object.LabelText(selector)
	s := m.selections[key]
	switch {
	case add && s == nil:
		s = &selection{selector: selector, users: 1, workloads: map[object.Key]struct{}{}}
		m.selections[key] = s
		for k, labels := range m.workloads {
			if object.HasLabels(labels, s.selector) {
				s.workloads[k] = struct{}{}
			}
		}
		m.touch(topic{subjectGatewayNamespaces, "", ""})
	case add:
		s.users++
	default:
		if s.users--; s.users == 0 {
			delete(m.selections, key)
			m.touch(topic{subjectGatewayNamespaces, "", ""})
		}
	}
}

func (m *Mesh) updatePod(k object.Key, o *object.Object) {
	if o == nil {
		m.updateWorkload(k, nil, false)
		return
	}
	labels, ok := normalise.WorkloadLabels(o)
	m.updateWorkload(k, labels, ok)
}

// updateWorkload updates the selections with the labels of a Pod or WorkloadEntry; ok is false if it is gone.
func (m *Mesh) updateWorkload(k object.Key, labels map[string]string, ok bool) {
	old, had := m.workloads[k]
	if ok == had && maps.Equal(old, labels) {
		return
	}
	if ok {
		m.workloads[k] = labels
	} else {
		delete(m.workloads, k)
	}
	switch {
	case ok && !had:
		m.countNamespace(k.Namespace, 1)
		m.occupy(k.Namespace, 1)
	case had && !ok:
		m.countNamespace(k.Namespace, -1)
		m.occupy(k.Namespace, -1)
	}
	for key, s := range m.selections {
		_, was := s.workloads[k]
		is := ok && object.HasLabels(labels, s.selector)
		if was == is {
			continue
		}
		if is {
			s.workloads[k] = struct{}{}
		} else {
			delete(s.workloads, k)
		}
		m.touch(topic{subjectSelected, key, ""})
		m.touch(topic{subjectGatewayNamespaces, "", ""})
	}
}
