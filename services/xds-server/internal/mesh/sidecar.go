package mesh

import (
	networking "istio.io/api/networking/v1alpha3"
)

func (w *writer) indexSidecar(v *Sidecar, add bool) {
	put(w, &w.next.sidecars, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
	w.touch(SubjectSidecars, v.Key.Namespace, "")
}

// Sidecar returns the Sidecar that applies to a workload of the namespace with these labels, nil if none does: one of
// its namespace that selects it, else its namespace's without a selector, else the root namespace's without a selector;
// the oldest where several qualify.
func (s *Snapshot) Sidecar(namespace, root string, labels map[string]string) *Sidecar {
	var byDefault *Sidecar
	for _, found := range s.sidecars.list(namespace + sep) {
		if selector := found.Spec.GetWorkloadSelector().GetLabels(); len(selector) > 0 {
			if Matches(selector, labels) {
				return found
			}
		} else if byDefault == nil {
			byDefault = found
		}
	}
	if byDefault != nil || root == namespace {
		return byDefault
	}
	return s.Sidecar(root, root, nil)
}

// SidecarTopics names the answers of Sidecar, and of EgressListeners for a Sidecar of the namespace.
func SidecarTopics(namespace, root string) []Topic {
	return []Topic{{SubjectSidecars, namespace, ""}, {SubjectSidecars, root, ""}}
}

// EgressListeners lists the egress listeners of a workload to which the Sidecar own applies, and returns the Sidecar
// that has them: a Sidecar without egress listeners inherits those of its namespace's default, or else of the root
// namespace's. Both results are nil where no Sidecar limits what the workload may address.
func (s *Snapshot) EgressListeners(own *Sidecar, root string) ([]*networking.IstioEgressListener, *Sidecar) {
	if own == nil {
		return nil, nil
	}
	for _, found := range []*Sidecar{own, s.Sidecar(own.Key.Namespace, root, nil), s.Sidecar(root, root, nil)} {
		if found != nil && len(found.Spec.GetEgress()) > 0 {
			return found.Spec.GetEgress(), found
		}
	}
	return nil, nil
}

// SidecarNamed returns one Sidecar, nil if there is none.
func (s *Snapshot) SidecarNamed(namespace, name string) *Sidecar {
	return lookup[*Sidecar](s, Key{KindSidecar, namespace, name})
}

// SidecarNamedTopic names the answer of SidecarNamed.
func SidecarNamedTopic(namespace string) Topic { return Topic{SubjectSidecars, namespace, ""} }
