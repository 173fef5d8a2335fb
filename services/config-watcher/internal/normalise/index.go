package normalise

import "slices"

// label is one key: value pair of an object's labels.
type label struct{ key, value string }

// set is a set of comparable keys.
type set[K comparable] map[K]struct{}

func (s set[K]) add(k K) { s[k] = struct{}{} }

// smallSet is a set that mostly has one or two members. It is a slice until it has more than maxFew.
type smallSet[K comparable] struct {
	few  []K
	many set[K]
}

// maxFew is the longest slice; a map costs as much memory as ten members or more.
const maxFew = 8

func (b smallSet[K]) len() int { return len(b.few) + len(b.many) }

// all calls yield for every member, in no order, until it returns false.
func (b smallSet[K]) all(yield func(K) bool) {
	for _, k := range b.few {
		if !yield(k) {
			return
		}
	}
	for k := range b.many {
		if !yield(k) {
			return
		}
	}
}

func (b *smallSet[K]) add(k K) {
	switch {
	case b.many != nil:
		b.many.add(k)
	case slices.Contains(b.few, k):
	case len(b.few) < maxFew:
		b.few = append(b.few, k)
	default:
		b.many = make(set[K], 2*maxFew)
		for _, old := range b.few {
			b.many.add(old)
		}
		b.few = nil
		b.many.add(k)
	}
}

func (b *smallSet[K]) remove(k K) {
	delete(b.many, k)
	if i := slices.Index(b.few, k); i >= 0 {
		b.few = slices.Delete(b.few, i, i+1)
	}
}

// multimap maps a key to a set. It drops empty sets.
type multimap[K, V comparable] map[K]smallSet[V]

func (m multimap[K, V]) add(k K, v V) {
	b := m[k]
	b.add(v)
	m[k] = b
}

func (m multimap[K, V]) remove(k K, v V) {
	b, ok := m[k]
	if !ok {
		return
	}
	if b.remove(v); b.len() == 0 {
		delete(m, k)
	} else {
		m[k] = b
	}
}

// place is a namespace of a cluster, which is empty for the own one.
type place struct{ namespace, cluster string }

// owner names a Service or a ServiceEntry, which select workloads and claim hostnames.
type owner struct{ kind, namespace, name, cluster string }

func (o owner) place() place { return place{o.namespace, o.cluster} }

// allWorkloads is the selector of a ServiceEntry whose workloadSelector has no labels: as in Istio it selects all
// workloads of the namespace. It is indexed under a pair that no workload has as label.
var allWorkloads = map[string]string{"": ""}

// selectors finds the owners whose selector matches given labels. Each owner is indexed under one pair of its selector.
type selectors struct {
	byPair   map[place]multimap[label, owner]
	selector map[owner]map[string]string
}

func newSelectors() *selectors {
	return &selectors{byPair: map[place]multimap[label, owner]{}, selector: map[owner]map[string]string{}}
}

// indexPair is the pair that a selector is indexed under: the one with the smallest key.
func indexPair(selector map[string]string) label {
	var out label
	first := true
	for k, v := range selector {
		if first || k < out.key {
			out, first = label{k, v}, false
		}
	}
	return out
}

// set replaces the owner's selector; an empty one removes it.
func (s *selectors) set(o owner, selector map[string]string) {
	if old := s.selector[o]; len(old) > 0 {
		s.byPair[o.place()].remove(indexPair(old), o)
		delete(s.selector, o)
	}
	if len(selector) == 0 {
		return
	}
	ns := s.byPair[o.place()]
	if ns == nil {
		ns = multimap[label, owner]{}
		s.byPair[o.place()] = ns
	}
	ns.add(indexPair(selector), o)
	s.selector[o] = selector
}

// of calls f for every owner that selects the instance: Services of its cluster, and ServiceEntries, which select
// workloads of all clusters.
func (s *selectors) of(in *instance, f func(owner)) {
	s.matching(in.key.place(), in.labels, f)
	if in.key.cluster != "" {
		s.matching(place{namespace: in.key.namespace}, in.labels, func(o owner) {
			if o.kind != "Service" {
				f(o)
			}
		})
	}
}

// matching calls f for every owner of the namespace that selects the labels.
func (s *selectors) matching(at place, labels map[string]string, f func(owner)) {
	ns := s.byPair[at]
	if ns == nil {
		return
	}
	for o := range ns[label{}].all {
		f(o)
	}
	for k, v := range labels {
		for o := range ns[label{k, v}].all {
			if k != "" && matches(s.selector[o], labels) {
				f(o)
			}
		}
	}
}

// instances finds the workload instances that a selector matches.
type instances struct {
	byKey  map[instKey]*instance
	byPair map[place]multimap[label, instKey]
	byNode multimap[nodeKey, instKey]
	// remote counts the instances of each remote cluster.
	remote map[string]int
}

// nodeKey names a Node.
type nodeKey struct{ name, cluster string }

func newInstances() *instances {
	return &instances{byKey: map[instKey]*instance{}, byPair: map[place]multimap[label, instKey]{}, byNode: multimap[nodeKey, instKey]{},
		remote: map[string]int{}}
}

func (x *instances) put(in *instance) {
	x.remove(in.key)
	x.byKey[in.key] = in
	at := in.key.place()
	ns := x.byPair[at]
	if ns == nil {
		ns = multimap[label, instKey]{}
		x.byPair[at] = ns
	}
	ns.add(label{}, in.key)
	for k, v := range in.labels {
		ns.add(label{k, v}, in.key)
	}
	if in.node != "" {
		x.byNode.add(in.nodeKey(), in.key)
	}
	if at.cluster != "" {
		x.remote[at.cluster]++
	}
}

func (x *instances) remove(k instKey) {
	old := x.byKey[k]
	if old == nil {
		return
	}
	delete(x.byKey, k)
	ns := x.byPair[k.place()]
	ns.remove(label{}, k)
	for lk, lv := range old.labels {
		ns.remove(label{lk, lv}, k)
	}
	if old.node != "" {
		x.byNode.remove(old.nodeKey(), k)
	}
	if k.cluster != "" {
		if x.remote[k.cluster]--; x.remote[k.cluster] == 0 {
			delete(x.remote, k.cluster)
		}
	}
}

// matching calls f for every instance of the namespace that the selector matches, in no order. It compares only the
// instances with the rarest pair of the selector.
func (x *instances) matching(at place, selector map[string]string, f func(*instance)) {
	ns := x.byPair[at]
	if ns == nil || len(selector) == 0 {
		return
	}
	var smallest smallSet[instKey]
	first := true
	for k, v := range selector {
		b := ns[label{k, v}]
		if first || b.len() < smallest.len() {
			smallest, first = b, false
		}
	}
	for k := range smallest.all {
		if in := x.byKey[k]; matches(selector, in.labels) {
			f(in)
		}
	}
}

// everywhere is matching for a namespace of all clusters.
func (x *instances) everywhere(namespace string, selector map[string]string, f func(*instance)) {
	x.matching(place{namespace: namespace}, selector, f)
	for cluster := range x.remote {
		x.matching(place{namespace, cluster}, selector, f)
	}
}

// selectedBy is matching for what an owner selects: a Service workloads of its cluster, a ServiceEntry those of all.
func (x *instances) selectedBy(o owner, selector map[string]string, f func(*instance)) {
	if o.kind == "Service" {
		x.matching(o.place(), selector, f)
	} else {
		x.everywhere(o.namespace, selector, f)
	}
}
