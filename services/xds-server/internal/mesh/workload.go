package mesh

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func (w *writer) indexWorkload(e *entry, v *configv1.Workload, add bool) {
	for _, a := range v.GetAddresses() {
		put(w, &w.next.addresses, add, join(a, e.key.Namespace, e.key.Name), v)
		w.touch(SubjectAddress, a, "")
	}
	w.count(&w.next.accounts, join(e.key.Namespace, v.GetServiceAccount()), add)
	w.touch(SubjectWorkload, e.key.Namespace, e.key.Name)
}

// Workload returns one workload, nil if there is none.
func (s *Snapshot) Workload(namespace, name string) *configv1.Workload {
	return lookup[*configv1.Workload](s, Key{KindWorkload, namespace, name})
}

// WorkloadTopic names the answer of Workload.
func WorkloadTopic(namespace, name string) Topic { return Topic{SubjectWorkload, namespace, name} }

// Workloads calls f for every workload.
func (s *Snapshot) Workloads(f func(*configv1.Workload)) {
	s.kinds[KindWorkload].scan("", func(_ string, e *entry) bool {
		f(e.value.(*configv1.Workload))
		return true
	})
}

// WorkloadsAt lists the workloads of an address.
func (s *Snapshot) WorkloadsAt(address string) []*configv1.Workload {
	return s.addresses.list(address + sep)
}

// AddressTopic names the answer of WorkloadsAt.
func AddressTopic(address string) Topic { return Topic{SubjectAddress, address, ""} }

// WorkloadsOf counts the workloads of a namespace that run as a service account. It costs one look-up.
func (s *Snapshot) WorkloadsOf(namespace, serviceAccount string) int {
	n, _ := s.accounts.get(join(namespace, serviceAccount))
	return n
}
